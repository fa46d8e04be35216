"""Long experiments are subsampled and tempered."""

import numpy as np

from frugax import ExperimentBudget, causal
from frugax.causal.campaign.preparation import (
    graph_row_weights,
    subsample_rows,
)


def test_long_experiments_are_subsampled():
    experiment_ids = np.repeat([-1, 0, 1, -1], [1500, 250, 3000, 900])
    values = np.zeros((len(experiment_ids), 2))
    used = subsample_rows(values, experiment_ids, seed=0)
    assert [int(used[experiment_ids == e].sum()) for e in (-1, 0, 1)] == [
        2000,
        250,
        250,
    ]
    # Not the first ones: a table may be sorted.
    assert used[experiment_ids == 1][-1000:].any()
    # Others' rows change nothing.
    more = subsample_rows(values[-3900:], experiment_ids[-3900:], seed=0)
    np.testing.assert_array_equal(used[experiment_ids == 1], more[:3000])
    other = subsample_rows(values, experiment_ids, seed=1)
    assert (used != other).any()


def test_complete_rows_are_preferred():
    experiment_ids = np.zeros(1000, int)
    values = np.full((1000, 2), np.nan)
    values[::5] = 0.0
    used = subsample_rows(values, experiment_ids, seed=0)
    assert used[::5].all()
    assert used.sum() == 250


def test_rows_of_one_experiment_are_tempered():
    experiment_ids = np.repeat([-1, 0, 1], [900, 10, 250])
    found = graph_row_weights(experiment_ids)
    assert (found[experiment_ids < 1] == 1).all()
    assert found[experiment_ids == 1].sum() == 25
    assert graph_row_weights(np.full(4000, -1)).sum() == 1000


def test_means_of_tempered_experiments_are_known_well():
    toy = causal.load_environment("toy")
    campaign = causal.Campaign(
        variables=toy.ranges,
        target=toy.target,
        budget=ExperimentBudget(n=9),
        rows_per_experiment=1000,
        seed=1,
    )
    campaign.tell_observations(toy.sample(100, seed=0))
    for _ in range(4):
        ask = campaign.ask()
        assert ask is not None
        rows = toy.sample(1000, seed=ask.id, intervention=ask.intervention)
        campaign.tell(ask, rows)
    known = campaign.infer()
    points, loss = known.outlook.points, known.outlook.loss
    error = known.row_std / 1000**0.5
    unsure = []
    for entry in campaign.experiments:
        g = points.targets.index(tuple(known.names.index(n) for n in entry.values))
        group = np.flatnonzero(points.group == g)
        off = np.abs(points.values[g] - [*entry.values.values()]).max(1)
        if off.min() < 0.05:  # of ten and more that can be set
            unsure.append(loss[:, group[np.argmin(off)]].std())
    assert len(unsure) > 1
    assert max(unsure) < 3 * error
    assert np.median(loss.std(0)) > 5 * error
