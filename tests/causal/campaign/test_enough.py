"""Of long experiments some rows are enough."""

import numpy as np

from frugax.causal.campaign._enough import enough, weights


def test_all_rows_of_short_experiments_and_some_of_long_ones():
    of_entry = np.repeat([-1, 0, 1, -1], [1500, 250, 3000, 900])
    values = np.zeros((len(of_entry), 2))
    used = enough(values, of_entry, seed=0)
    assert [int(used[of_entry == e].sum()) for e in (-1, 0, 1)] == [2000, 250, 250]
    # Not the first ones: a table may be sorted.
    assert used[of_entry == 1][-1000:].any()
    # Others' rows change nothing.
    more = enough(values[-3900:], of_entry[-3900:], seed=0)
    np.testing.assert_array_equal(used[of_entry == 1], more[:3000])
    other = enough(values, of_entry, seed=1)
    assert (used != other).any()


def test_whole_rows_first():
    of_entry = np.zeros(1000, int)
    values = np.full((1000, 2), np.nan)
    values[::5] = 0.0
    used = enough(values, of_entry, seed=0)
    assert used[::5].all()
    assert used.sum() == 250


def test_rows_of_one_experiment_count_as_a_few():
    of_entry = np.repeat([-1, 0, 1], [900, 10, 250])
    found = weights(of_entry)
    assert (found[of_entry < 1] == 1).all()
    assert found[of_entry == 1].sum() == 25
    assert weights(np.full(4000, -1)).sum() == 1000
