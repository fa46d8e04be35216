"""Of long experiments some rows are enough."""

import numpy as np

from frugax import ExperimentBudget, causal
from frugax.causal.campaign._enough import counted, enough, weights


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


def test_what_a_row_counts_in_a_fit():
    used = np.repeat([True, False], [1000, 500])
    free = np.ones(1500, bool)
    found = counted(used, free)
    assert set(found.tolist()) == {0.5, 0.0}
    free[:500] = False
    assert counted(used, free).max() == 2 / 3


def test_what_thousands_of_rows_measured_is_known_though_they_count_for_less():
    toy = causal.load_environment("toy")
    campaign = causal.Campaign(
        variables=toy.ranges,
        target=toy.target,
        budget=ExperimentBudget(n=9),
        rows=1000,
        seed=1,
    )
    campaign.tell_observations(toy.sample(100, seed=0))
    for _ in range(4):
        ask = campaign.ask()
        assert ask is not None
        rows = toy.sample(1000, seed=ask.id, intervention=ask.intervention)
        campaign.tell(ask, rows)
    known = campaign.look()
    points, loss = known.outlook.points, known.outlook.loss
    error = known.one_row / 1000**0.5
    unsure = []
    for entry in campaign.asks:
        g = points.targets.index(tuple(known.names.index(n) for n in entry.values))
        group = np.flatnonzero(points.group == g)
        off = np.abs(points.values[g] - [*entry.values.values()]).max(1)
        if off.min() < 0.05:  # of ten and more that can be set
            unsure.append(loss[:, group[np.argmin(off)]].std())
    assert len(unsure) > 1
    assert max(unsure) < 2 * error
    assert np.median(loss.std(0)) > 5 * error
