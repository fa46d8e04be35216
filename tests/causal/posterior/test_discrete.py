"""Causes among variables of a few values."""

import numpy as np
import pytest

from frugax.causal import Samples
from frugax.causal.posterior import DiscretePosterior
from frugax.causal.posterior.discrete import to_levels
from refusals import refuses, warns


def collider(n=300):
    """x -> z <- y, where z is their exclusive or: neither cause shows alone."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (2, n))
    z = (x ^ y) ^ (rng.random(n) < 0.05)
    # All three are alike until one of them is set.
    is_set = np.zeros((n, 4), bool)
    is_set[n // 2 :, 3] = True
    z = np.where(is_set[:, 3], rng.integers(0, 2, n), z)
    values = np.stack([rng.poisson(1 + 3 * z), x, y, z], 1)
    return Samples(("count", "x", "y", "z"), values.astype(np.float32), is_set)


def test_causes_that_show_only_together_are_found():
    edges = DiscretePosterior().edges(collider())
    assert edges[1, 3] > 0.9
    assert edges[2, 3] > 0.9
    assert edges[3, 0] > 0.9
    assert edges[0, 3] < 0.1


def test_each_variable_of_a_large_table_is_judged_among_those_related_to_it():
    # Thirteen more switches know nothing of the others.
    few, rng = collider(), np.random.default_rng(1)
    more = rng.integers(0, 2, (len(few), 13)).astype(np.float32)
    names = (*few.variables, *(f"noise{i}" for i in range(13)))
    is_set = np.hstack([few.intervened, np.zeros(more.shape, bool)])
    many = Samples(names, np.hstack([few.values, more]), is_set)
    edges = DiscretePosterior().edges(many)
    assert edges[1, 3] > 0.9
    assert edges[2, 3] > 0.9
    assert edges[3, 0] > 0.9
    assert edges[4:].max() < 0.5
    assert (edges + edges.T).max() <= 1 + 1e-6


def test_a_column_that_does_not_vary_has_no_edges():
    samples = collider()
    constant = np.full((len(samples), 2), 3.0, np.float32)
    # The second one varies where it is set, so that it may be a cause.
    is_set = np.zeros((len(samples), 2), bool)
    is_set[:50, 1], constant[:50, 1] = True, np.arange(50) % 2
    both = Samples(
        (*samples.variables, "constant", "fixed"),
        np.hstack([samples.values, constant]),
        np.hstack([samples.intervened, is_set]),
    )
    with warns(UserWarning, "constant"):
        edges = DiscretePosterior().edges(both)
    assert not edges[4].any()
    assert not edges[:, 4:].any()
    assert edges[5].any()
    assert edges[1, 3] > 0.9


def test_other_columns_are_divided_at_their_quartiles():
    assert to_levels(np.array([0.0, 2.0, 7.0, 2.0])).tolist() == [0, 1, 2, 1]
    levels = to_levels(np.random.default_rng(0).standard_normal(400))
    assert np.bincount(levels).tolist() == [100] * 4
    assert to_levels(np.arange(100.0)).max() == 3
    assert to_levels(np.full(5, 1.5)).max() <= 1
    with refuses(ValueError, "variable"):
        DiscretePosterior().edges(
            Samples.observed(("x", "y"), [[1.0, np.nan], [np.nan, 0.0]])
        )


def test_two_variables_that_were_only_observed_have_no_direction():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, 200)
    b = np.where(rng.random(200) < 0.9, a, 1 - a)
    values = np.stack([a, b], axis=1).astype(np.float32)
    samples = Samples(("a", "b"), values, np.zeros((200, 2), bool))
    edges = DiscretePosterior().edges(samples)
    assert edges[0, 1] == pytest.approx(edges[1, 0], abs=0.01)
    assert edges.sum() == pytest.approx(1.0, abs=0.01)
    alone = Samples(("a",), values[:, :1], np.zeros((200, 1), bool))
    assert DiscretePosterior().edges(alone).tolist() == [[0.0]]
