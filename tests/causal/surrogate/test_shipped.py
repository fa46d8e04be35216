"""The surrogate that ships: it loads, and recovers known graphs."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from frugax import SizeBudget, causal, compress
from frugax.causal.surrogate import _surrogate
from frugax.causal.surrogate.network import initial_weights
from frugax.errors import CorruptFileError, OutputError
from refusals import refuses, warns


def _chain(rows=60, extra=()):
    """x -> y -> z, observed and with x, then y, set."""
    equations = {"x": {}, "y": {"x": 1.5}, "z": {"y": -1.0}}
    equations |= {name: {} for name in extra}
    scm = causal.SCM.linear(equations, noise_scale=0.7)
    data = causal.sample(scm, rows, seed=0)
    for i, value in enumerate((-2.0, -1.0, 1.0, 2.0)):
        for name in ("x", "y", "z"):
            do = causal.intervene(**{name: value})
            data = data.concat(causal.sample(scm, 5, seed=i + 1, intervention=do))
    return data


def test_it_is_small_and_finds_a_chain():
    assert Path(_surrogate.__file__).with_name("default.fxz").stat().st_size < 2e6
    edges = causal.load_default_surrogate().edge_probabilities(_chain())
    assert edges[0, 1] > 0.9
    assert edges[1, 2] > 0.9
    rest = edges.copy()
    rest[0, 1] = rest[1, 2] = 0
    assert rest.max() < 0.3


def test_no_set_of_parents_is_left_out():
    surrogate = causal.load_default_surrogate()
    data = _chain(extra=("u", "v"))
    p = surrogate.posterior(data, "z")
    assert len(p.parent_sets) == 2**4
    assert p.best == {"y"}
    edges = surrogate.edge_probabilities(data)
    for name, marginal in p.marginals.items():
        assert marginal == pytest.approx(
            edges[data.index(name), data.index("z")], abs=1e-4
        )
    known = surrogate.posterior(data, "z", required=["x"], forbidden=["u"])
    assert known.prob({"u"}) == 0
    with refuses(ValueError, "'Q'", "'z'"):
        known.prob({"Q"})
    assert all("x" in s and "u" not in s for s in known.parent_sets)


def test_order_units_and_length_of_a_table_do_not_matter():
    surrogate = causal.load_default_surrogate()
    data = _chain(extra=("u",))
    edges = surrogate.edge_probabilities(data)
    turned = data.select(("u", "z", "x", "y"))
    place = [turned.index(name) for name in data.variables]
    np.testing.assert_allclose(
        surrogate.edge_probabilities(turned)[np.ix_(place, place)], edges, atol=1e-3
    )
    other = causal.Samples(data.variables, data.values * 1e4 + 3e5, data.intervened)
    np.testing.assert_allclose(surrogate.edge_probabilities(other), edges, atol=2e-2)


def test_many_variables_are_judged_among_their_neighbours():
    data = _chain(rows=150, extra=[f"u{i}" for i in range(13)])
    edges = causal.load_default_surrogate().edge_probabilities(data)
    assert edges.shape == (16, 16)
    assert edges[0, 1] > 0.8
    assert edges[1, 2] > 0.8
    p = causal.load_default_surrogate().posterior(data, "z", required=["u12"])
    assert len(next(iter(p.parent_sets))) >= 1
    assert p.marginals["u12"] == pytest.approx(1)
    assert p.marginals["y"] > 0.8


def test_a_required_parent_takes_the_place_of_the_least_related_variable():
    noise = [f"n{i:02}" for i in range(13)]
    # The cause is the last column, so that it is not kept for its place alone.
    scm = causal.SCM.linear(
        {**{name: {} for name in noise}, "z": {}, "y": {"z": 2.0}}, noise_scale=0.5
    )
    data = causal.collect_observational_data(scm, 60, seed=0).select([*noise, "y", "z"])
    surrogate = causal.load_default_surrogate()
    sought = frozenset().union(*surrogate.posterior(data, "y").parent_sets)
    left_out = [name for name in noise if name not in sought]
    assert len(left_out) == 3
    for name in left_out:
        p = surrogate.posterior(data, "y", required=[name])
        # Half is all that data tell: from y to z would look the same.
        assert p.marginals["z"] > 0.3


def test_an_edge_and_its_reverse_are_not_both_likely(monkeypatch):
    x = np.random.default_rng(0).normal(size=(50, 1))
    same = causal.Samples.observed(("x", "y", "z"), np.repeat(x, 3, 1))
    with warns(UserWarning, "x", "y"):
        edges = causal.load_default_surrogate().edge_probabilities(same)
    np.testing.assert_allclose(edges + edges.T, 1 - np.eye(3), atol=1e-6)
    # With many variables each has its own neighbours: only y sees x -> y <- z.
    monkeypatch.setattr(_surrogate, "MAX_VARIABLES", 2)
    monkeypatch.setattr(
        _surrogate, "nearest_variables", lambda *_: [[0, 1], [0, 1, 2], [1, 2]]
    )
    scm = causal.SCM.linear({"x": {}, "y": {"x": 1.0, "z": 1.0}, "z": {}})
    edges = causal.load_default_surrogate().edge_probabilities(
        causal.sample(scm, 200, seed=0)
    )
    assert edges[0, 1] + edges[1, 0] == pytest.approx(1, abs=1e-6)


def test_files(tmp_path):
    surrogate = causal.Surrogate(initial_weights(0, 4, 0)).with_temperature(2.0)
    causal.save_surrogate(tmp_path / "s.fxz", surrogate)
    again = causal.load_surrogate(tmp_path / "s.fxz")
    assert again.temperature == 2
    data = _chain()
    np.testing.assert_allclose(
        again.edge_probabilities(data), surrogate.edge_probabilities(data), atol=0.01
    )
    compress.save(tmp_path / "t.fxz", {"w": np.ones(3)}, SizeBudget(max_abs=0))
    with refuses(CorruptFileError):
        causal.load_surrogate(tmp_path / "t.fxz")
    with refuses(OutputError):
        causal.save_surrogate(tmp_path / "t.fxz", surrogate)
    arrays = {**surrogate.weights, "temperature": np.ones(1), "edge": np.ones((3, 1))}
    compress.save(tmp_path / "u.fxz", arrays, SizeBudget(max_abs=0))
    with refuses(CorruptFileError, "(4, 1)"):
        causal.load_surrogate(tmp_path / "u.fxz")
    with refuses(FileNotFoundError, "v.fxz"):
        causal.load_surrogate(tmp_path / "v.fxz")
    with refuses(ValueError, "temperature"):
        surrogate.with_temperature(0.0)


def test_a_graph_lists_the_likely_edges():
    edges = np.zeros((3, 3), np.float32)
    edges[0, 1], edges[1, 0], edges[1, 2], edges[0, 2] = 0.6, 0.35, 0.4, 0.05
    graph = causal.select_graph(edges)
    # Without a better candidate 0.4 is worth naming; the other direction never is.
    assert graph[0, 1]
    assert graph[1, 2]
    assert graph.sum() == 2
    edges[0, 1], edges[1, 0] = 0.5, 0.5
    assert causal.select_graph(edges).tolist()[0][1] is True
    assert not causal.select_graph(np.zeros((2, 2), np.float32)).any()


def test_a_single_variable_has_zero_edges_and_a_constant_one_warns():
    surrogate = causal.load_default_surrogate()
    one = _chain().rows(slice(60)).select(("x",))
    assert surrogate.edge_probabilities(one).tolist() == [[0]]
    assert surrogate.posterior(one, "x").best == frozenset()
    values = _chain().values.copy()
    values[:, 1] = 3.0
    with warns(UserWarning):
        surrogate.edge_probabilities(causal.Samples.observed(("x", "y", "z"), values))


@pytest.mark.parametrize(
    ("edges", "named"),
    [
        ([[0, np.nan], [0, 0]], "[0, 1]"),
        ([[0, 0], [2, 0]], "[1, 0]"),
    ],
)
def test_invalid_edge_probabilities_are_refused(edges, named):
    with refuses(ValueError, named):
        causal.select_graph(np.array(edges, np.float32))


def test_a_variable_is_never_its_own_parent():
    with refuses(ValueError, "'y'", "required"):
        causal.load_default_surrogate().posterior(_chain(), "y", required=["y"])


def test_a_certain_edge_has_at_most_probability_one():
    made = causal.generate_batch(
        4, d=4, rows=300, observed=150, seed=0, noise_scales=(0.05, 0.1)
    )
    told = (made.intervened.astype(np.float32), np.ones_like(made.values))
    edges = causal.load_default_surrogate().predict(made.values, *told).edges
    assert edges.max() == 1  # rounding takes the sum over sets beyond it
    assert all(causal.select_graph(each).any() for each in edges)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("d", [3, 10, 20])
def test_independent_columns_get_no_edge(seed, d):
    rows = np.random.default_rng(seed).normal(size=(300, d))
    samples = causal.Samples.observed([f"v{i}" for i in range(d)], rows)
    edges = causal.load_default_surrogate().edge_probabilities(samples)
    assert not causal.select_graph(edges).any()
    assert not causal.select_graph(np.full((d, d), 1e-6)).any()


@pytest.mark.parametrize("seed", range(8))
def test_the_selection_has_the_largest_expected_f1(seed):
    """All graphs and all selections of three pairs, each in two directions or none."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet([rng.choice([0.3, 3]), 0.3, rng.choice([0.3, 9])], size=3)
    edges = np.zeros((3, 3))
    pairs = [(0, 1), (0, 2), (1, 2)]
    for (i, j), (forward, backward, _) in zip(pairs, chances, strict=True):
        edges[i, j], edges[j, i] = forward, backward

    def expected(selected):
        total = 0.0
        for kinds in itertools.product(range(3), repeat=3):
            chance = np.prod([c[k] for c, k in zip(chances, kinds, strict=True)])
            true = np.zeros((3, 3), bool)
            for (i, j), kind in zip(pairs, kinds, strict=True):
                true[i, j], true[j, i] = kind == 0, kind == 1
            both, sizes = (true & selected).sum(), true.sum() + selected.sum()
            total += chance * (2 * both / sizes if sizes else 1.0)
        return total

    found = expected(causal.select_graph(edges))
    for kinds in itertools.product(range(3), repeat=3):
        other = np.zeros((3, 3), bool)
        for (i, j), kind in zip(pairs, kinds, strict=True):
            other[i, j], other[j, i] = kind == 0, kind == 1
        # Hits and reverse edges of one pair exclude each other: the sums take them for
        # independent, which costs little.
        assert expected(other) <= found + 0.02
