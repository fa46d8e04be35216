"""Exact sums over graphs, against adding up every graph."""

import itertools

import numpy as np
import pytest
from benchmarks.causal_exact import parent_set_probabilities

from frugax.causal.posterior import (
    Domain,
    ParentScores,
    sample_graphs,
    score_parent_sets,
    sum_over_orders,
)
from refusals import refuses


def random_scores(d, rng):
    sets = np.array([m for m in range(1 << d)])
    return ParentScores(
        tuple(sets[sets >> v & 1 == 0] for v in range(d)),
        tuple(rng.normal(size=1 << d - 1) * 2 for _ in range(d)),
    )


def every_graph(scores):
    """Log weight of each graph without a cycle."""
    d = len(scores.sets)
    found = {}
    for which in itertools.product(*(range(len(s)) for s in scores.sets)):
        graph = [int(scores.sets[v][i]) for v, i in enumerate(which)]
        left = set(range(d))
        while free := {v for v in left if not any(graph[v] >> u & 1 for u in left)}:
            left -= free
        if not left:
            found[tuple(graph)] = sum(scores.logs[v][i] for v, i in enumerate(which))
    return found


def test_parent_set_probabilities_sum_over_all_graphs():
    scores = random_scores(4, np.random.default_rng(0))
    graphs = every_graph(scores)
    assert len(graphs) == 543  # of four labelled variables
    total = sum(map(np.exp, graphs.values()))
    for v in range(4):
        found = parent_set_probabilities(scores, v)
        for parents, weight in zip(scores.sets[v], found, strict=True):
            exact = sum(np.exp(w) for g, w in graphs.items() if g[v] == parents) / total
            assert weight == pytest.approx(exact, abs=1e-12)


def test_graphs_are_drawn_in_proportion_to_their_weight():
    scores = random_scores(3, np.random.default_rng(1))
    graphs = every_graph(scores)
    total = sum(map(np.exp, graphs.values()))
    drawn = sample_graphs(sum_over_orders(scores), 4000, np.random.default_rng(2))
    for graph, weight in graphs.items():
        share = (drawn == graph).all(1).mean()
        # Five standard errors; draws from a quarter of which are kept are correlated.
        assert share == pytest.approx(np.exp(weight) / total, abs=5 * 0.5 / 4000**0.5)


def interventional(rng, n=400):
    x = rng.normal(size=n)
    y = 2 * x + rng.normal(size=n)
    set_ = np.zeros((n, 2), bool)
    y[n // 2 :] = rng.normal(size=n // 2)
    set_[n // 2 :, 1] = True
    return np.stack([x, y], 1), set_


def test_rows_of_interventions_tell_causes_from_effects():
    values, set_ = interventional(np.random.default_rng(0))
    domain = Domain(values.mean(0), values.std(0))
    scores = score_parent_sets(values, set_, domain, max_parents=1, curved=False)
    # y was set without effect on x: x is the cause.
    assert parent_set_probabilities(scores, 1)[list(scores.sets[1]).index(1)] > 0.99


def test_stated_edges_restrict_the_parent_sets():
    values, set_ = interventional(np.random.default_rng(0))
    domain = Domain(values.mean(0), values.std(0))
    more = {"max_parents": 1, "curved": False}
    must = score_parent_sets(values, set_, domain, required=[(1, 0)], **more)
    assert parent_set_probabilities(must, 0).tolist() == [1.0]
    never = score_parent_sets(values, set_, domain, forbidden=[(0, 1)], **more)
    assert never.sets[1].tolist() == [0]
    both = score_parent_sets(values, set_, domain, required=[(0, 1), (1, 0)], **more)
    with refuses(ValueError, "acyclic"):
        parent_set_probabilities(both, 0)


def test_too_many_variables_are_refused():
    scores = ParentScores((np.zeros(1, int),) * 13, (np.zeros(1),) * 13)
    for sums in (
        lambda: sum_over_orders(scores),
        lambda: parent_set_probabilities(scores, 0),
    ):
        with refuses(ValueError, 12):
            sums()
