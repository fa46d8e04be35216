"""Random models: their graphs, their data and their invariants."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from frugax import causal
from frugax.causal.scm import FAMILIES, GRAPHS, Mechanisms, evaluate, random_graphs
from refusals import refuses

EDGES = {
    "tree": 5,
    "chain": 5,
    "fork": 5,
    "collider": 5,
    "diamond": 8,
    "butterfly": 9,
    "full": 15,
    "empty": 0,
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_kind_of_graph_is_sampled_and_is_acyclic(graph):
    scm = causal.generate_scm(graph, 6, seed=1)  # a cycle is refused by its order
    if graph in EDGES:
        assert scm.adjacency.sum() == EDGES[graph]
    position = {name: place for place, name in enumerate(scm.order)}
    for child in scm.variables:
        assert all(position[p] < position[child] for p in scm.parents(child))
    data = causal.sample(scm, 2000, seed=0)
    np.testing.assert_allclose(data.values.std(0), 1, atol=0.2)
    assert (scm.target is None) == (graph == "empty")


@pytest.mark.parametrize(
    "graph", ["erdos_renyi", "scale_free", "scale_free_effects", "small_world"]
)
def test_random_graphs_have_the_requested_number_of_edges(graph):
    sizes = np.full(300, 20)
    rng = np.random.default_rng(0)
    edges = random_graphs(graph, sizes, 24, np.full(300, 2.0), rng)
    assert not edges[:, 20:].any()
    assert not edges[:, :, 20:].any()
    assert not np.tril(edges).any()
    # The first variables of a scale-free graph have fewer to attach to.
    assert edges.sum((1, 2)).mean() / 20 == pytest.approx(2.0, abs=0.25)
    degrees_out, degrees_in = edges.sum(2), edges.sum(1)
    if graph == "scale_free":
        assert degrees_out.max(1).mean() > degrees_in.max(1).mean() + 2
    if graph == "scale_free_effects":
        assert degrees_in.max(1).mean() > degrees_out.max(1).mean() + 2
    if graph == "small_world":  # neighbours of neighbours are neighbours
        both = (edges | edges.swapaxes(1, 2)).astype(int)
        closed = np.einsum("bij,bjk,bki->b", both, both, both).mean()
        random = random_graphs("erdos_renyi", sizes, 24, np.full(300, 2.0), rng)
        both = (random | random.swapaxes(1, 2)).astype(int)
        assert closed > 1.15 * np.einsum("bij,bjk,bki->b", both, both, both).mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_equals_draws_from_its_models(family):
    batch = causal.generate_batch(
        12,
        d=(2, 6),
        pad_to=7,
        rows=60,
        family=family,
        graph=("erdos_renyi", "scale_free", "diamond"),
        noise=("gaussian", "laplace", "uniform", "student"),
        heteroscedastic=0.5,
        seed=3,
    )
    assert batch.values.shape == (12, 60, 7)
    assert batch.values.dtype == np.float32
    assert set(batch.present.sum(1)) <= set(range(2, 7))
    absent = ~batch.present
    assert not batch.values.swapaxes(1, 2)[absent].any()
    assert not batch.adjacency[absent].any()
    # Standardised while it was drawn, over the observations.
    seen = batch.values[:, :30].swapaxes(1, 2)[batch.present]
    np.testing.assert_allclose(seen.mean(1), 0, atol=1e-4)
    np.testing.assert_allclose(seen.std(1), 1, atol=1e-3)
    # Interventions: one variable in each of the later rows, none padding.
    assert not batch.intervened[:, :30].any()
    assert (batch.intervened[:, 30:].sum(2) == 1).all()
    assert not batch.intervened.swapaxes(1, 2)[absent].any()
    # Noise that gives the data back must exist: undo the last step of every variable.
    m, x = batch.mechanisms, batch.values.swapaxes(1, 2).astype(np.float64)
    for b in range(12):
        noise = _noise_of(m, x, b)
        ones = {f.name: getattr(m, f.name)[[b]] for f in dataclasses.fields(Mechanisms)}
        changed = batch.intervened[b].T[None]
        again, _ = evaluate(
            Mechanisms(**ones),
            noise[None],
            keep=(~changed).astype(float),
            offset=np.where(changed, x[[b]], 0.0),
        )
        np.testing.assert_allclose(again[0], x[b], atol=1e-4)
        # The noise is scaled: without interventions it has variance 1.
        own = noise[:, :30][batch.present[b]]
        assert np.abs(own).max() < 12
        assert 0.5 < own.var() < 2


def _noise_of(m, x, b):
    """The noise of unit variance that made the values of one model."""
    noise = np.zeros_like(x[b])
    for j in np.flatnonzero(m.present[b]):
        units = m.inner[b, :, j].T @ x[b] + m.phase[b, j][:, None]
        act = np.cos(units) if m.kind[b, j] == 2 else np.tanh(units)
        rest = m.bias[b, j] + m.weight[b, :, j] @ x[b] + m.outer[b, j] @ act
        size = m.noise_scale[b, j] * np.exp(np.tanh(m.spread[b, :, j] @ x[b]))
        noise[j] = (x[b, j] * m.scale[b, j] + m.centre[b, j] - rest) / size
    return noise


def test_variances_and_column_order_do_not_reveal_the_graph():
    batch = causal.generate_batch(400, d=6, graph="chain", rows=64, seed=0)
    forward = np.triu(batch.adjacency, 1).sum((1, 2)).mean()
    assert forward == pytest.approx(2.5, abs=0.25)  # half of five edges
    seen = batch.values[:, :32].std(1)
    np.testing.assert_allclose(seen, 1, atol=1e-3)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_smallest_graphs_of_every_kind(d):
    batch = causal.generate_batch(60, d=(1, d), graph=GRAPHS, rows=8, seed=d)
    assert np.isfinite(batch.values).all()
    assert batch.adjacency.sum((1, 2)).max() == d * (d - 1) // 2


def test_a_seed_repeats_a_batch_and_a_generator_draws_a_new_one():
    one, same = (causal.generate_batch(3, seed=7).values for _ in range(2))
    np.testing.assert_array_equal(one, same)
    rng = np.random.default_rng(7)
    first, second = (causal.generate_batch(3, seed=rng).values for _ in range(2))
    np.testing.assert_array_equal(first, one)
    assert (second != first).any()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"graph": "erdos"}, "graph"),
        ({"family": "quadratic"}, "quadratic"),
        ({"noise": ()}, "noise"),
        ({"d": (5, 3)}, "(5, 3)"),
        ({"d": 5, "pad_to": 4}, "pad_to"),
        ({"rows": 10, "observed": 11}, "observed"),
        ({"sets": 0}, "sets"),
        ({"edges_per_node": -1.0}, "edges_per_node"),
        ({"weights": (2.0, 1.0)}, "weights"),
        ({"noise_scales": (-1.0, 1.0)}, "noise_scales"),
    ],
)
def test_an_impossible_generator_setting_is_refused(options, named):
    settings: dict[str, Any] = {"sets": 2, "seed": 0, **options}
    with refuses(ValueError, named):
        causal.generate_batch(**settings)


@pytest.mark.parametrize(
    ("difficulty", "least", "most"),
    [("easy", 3, 5), ("medium", 5, 10), ("hard", 10, 40)],
)
def test_difficulties_have_their_sizes(difficulty, least, most):
    sizes = set()
    for seed in range(6):
        scm = causal.generate_scm_for_difficulty(difficulty, seed=seed)
        assert least <= len(scm.variables) <= most
        sizes.add(len(scm.variables))
        again = causal.generate_scm_for_difficulty(difficulty, seed=seed)
        np.testing.assert_array_equal(again.adjacency, scm.adjacency)
    assert len(sizes) > 1
    with refuses(ValueError, "hardest"):
        causal.generate_scm_for_difficulty("hardest")
