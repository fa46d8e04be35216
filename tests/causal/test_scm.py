"""Causal models: refused inputs, parents read from functions, and pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import causal
from frugax.causal import SCM


@pytest.fixture(scope="module")
def chain():
    return SCM.linear({"x": {}, "y": {"x": 2.0}, "z": {"y": 1.0}}, noise_scale=0.1)


def test_a_model_knows_its_graph(chain):
    assert chain.variables == chain.order == chain.observed == ("x", "y", "z")
    assert chain.parents("z") == ("y",)
    assert chain.parents("x") == ()
    assert chain.ancestors("z") == {"x", "y"}
    assert chain.ancestors("x") == set()
    np.testing.assert_array_equal(
        chain.adjacency, [[False, True, False], [False, False, True], [False] * 3]
    )


def test_equations_may_come_in_any_order():
    scm = SCM.linear({"z": {"y": 1.0}, "y": {"x": 2.0}, "x": {}})
    assert scm.variables == ("z", "y", "x")
    assert scm.order == ("x", "y", "z")
    data = causal.sample(scm, 4000, seed=0)
    # Var(x) = 1, Var(y) = 4 + 1, Var(z) = 5 + 1; four standard errors of a variance.
    for name, variance in {"x": 1.0, "y": 5.0, "z": 6.0}.items():
        assert data[name].var() == pytest.approx(variance, rel=4 * (2 / 4000) ** 0.5)


@pytest.mark.parametrize(
    ("equations", "options", "says"),
    [
        ({}, {}, "at least one variable"),
        ({"": {}}, {}, "needs a name"),
        ({"a": {"b": 1.0}}, {}, "parents of 'a': there is no variable 'b', only a"),
        ({"a": {"b": 1.0}, "b": {"a": 1.0}}, {}, "cycle: a -> b -> a"),
        ({"a": {"a": 1.0}}, {}, "cycle: a -> a"),
        (
            {"r": {}, "c": {"b": 1.0, "r": 1.0}, "a": {"c": 1.0}, "b": {"a": 1.0}},
            {},
            "cycle: c -> a -> b -> c",
        ),
        ({"a": {}, "b": {"a": float("nan")}}, {}, "weight 'a' of 'b' must be finite"),
        ({"a": {}}, {"noise_scale": -1.0}, "noise_scale must be >= 0"),
        ({"a": {}}, {"noise_scale": float("inf")}, "noise_scale must be finite"),
        ({"a": {}}, {"noise": "cauchy"}, "noise 'cauchy' of 'a'"),
        ({"a": {}}, {"noise": {"b": "uniform"}}, "noise: there is no variable 'b'"),
        ({"a": {}}, {"bias": {"b": 1.0}}, "bias: there is no variable 'b'"),
        ({"a": {}}, {"target": "b"}, "no variable 'b'"),
        ({"a": {}}, {"hidden": ["b"]}, "no variable 'b'"),
        ({"a": {}}, {"target": "a", "hidden": ["a"]}, "is hidden: choose an observed"),
    ],
)
def test_an_invalid_model_is_refused_with_its_place(equations, options, says):
    with pytest.raises(ValueError, match=says):
        SCM.linear(equations, **options)


def test_arguments_that_a_function_replaces_are_refused():
    own = lambda p, e: p["a"] + e
    with pytest.raises(ValueError, match="bias of 'b': its function adds its own"):
        SCM.create({"a": {}, "b": own}, bias={"b": 1.0})
    with pytest.raises(ValueError, match="parents of 'b': its weights name them"):
        SCM.create({"a": {}, "b": {"a": 1.0}}, parents={"b": ["a"]})


def test_functions_name_their_parents_by_reading_them():
    scm = SCM.create(
        {
            "x": {},
            "y": lambda p, e: p["x"] ** 2 + e,
            "z": {"y": 1.0},
            "w": lambda p, e: p.get("z", 0.0) * 2 + e,
        },
        noise_scale={"y": 0.0, "z": 0.0, "w": 0.0},
    )
    assert scm.parents("y") == ("x",)
    assert scm.parents("w") == ("z",)
    data = causal.sample(scm, 50, seed=0)
    np.testing.assert_allclose(data["y"], data["x"] ** 2, rtol=1e-6)
    np.testing.assert_allclose(data["w"], 2 * data["y"], rtol=1e-6)


def test_a_branching_function_needs_its_parents_stated():
    def y(p, e):
        return p["a"] + e if (e < 0).all() else p["b"] + e

    equations = {"a": {}, "b": {}, "y": y}
    told = SCM.create(equations, parents={"y": ["a", "b"]})
    assert told.parents("y") == ("a", "b")
    assert SCM.create(equations).parents("y") == ("b",)


@pytest.mark.parametrize(
    ("equation", "says"),
    [
        (lambda p, e: p["q"] + e, r"of 'y' failed \(KeyError: 'q'\): .* may read x\. "),
        (lambda p: p["x"], r"\(TypeError: .* called as function\(parents, noise\)"),
        (lambda p, e: np.add(p["x"], e, out=p["x"]), "'y' failed .*read-only"),
        (lambda p, e: np.zeros(3), r"of 'y' gives an array of shape \(3,\): .* 1 here"),
        (lambda p, e: "abc", "of 'y' gives 'abc'"),
        (lambda p, e: None, "of 'y' gives None"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(equation, says):
    with pytest.raises(ValueError, match=says):
        SCM.create({"x": {}, "y": equation})


@pytest.mark.parametrize(
    ("equation", "says"),
    [
        (
            lambda p, e: p["x"] + e,
            r"KeyError: 'x'.* may read w, v\. .* it reads in parents",
        ),
        (
            lambda p, e: e if p["w"] > 0 else -e,
            "'y' failed .*ambiguous.* may read w, v",
        ),
        (lambda p, e: np.add(p["w"], e, out=p["w"]), "'y' failed .*read-only"),
        (lambda p, e: np.zeros(3), r"of 'y' gives an array of shape \(3,\): .* 4 here"),
    ],
)
def test_a_function_that_fails_later_is_reported_by_name(equation, says):
    scm = SCM.create({"x": {}, "w": {}, "v": {}, "y": equation}, parents={"y": "wv"})
    with pytest.raises(ValueError, match=says):
        causal.sample(scm, 4, seed=0)


def test_a_function_that_leaves_the_numbers_names_its_variable():
    scm = SCM.create({"x": {}, "y": lambda p, e: 1 / (0 * p["x"]), "z": {"y": 1.0}})
    with (
        np.errstate(divide="ignore", invalid="ignore"),
        pytest.raises(ValueError, match=r"'y' is .*inf in row 0"),
    ):
        causal.sample(scm, 3, seed=0)


def test_a_model_is_a_pytree_with_its_names_outside(chain):
    doubled = jax.tree.map(lambda a: a, chain)
    assert doubled.variables == chain.variables
    assert doubled.order == chain.order

    def mean_of_z(weight):
        import dataclasses

        m = dataclasses.replace(chain.mechanisms, weight=weight)
        scm = dataclasses.replace(chain, mechanisms=m)
        do = causal.intervene(x=1.0)
        return causal.simulate(scm, jax.random.key(0), 10, do)[:, 2].mean()

    slope = jax.grad(mean_of_z)(jnp.asarray(chain.mechanisms.weight))
    # z = w_yz (w_xy x + e_y) + e_z: the slopes are w_yz x = 1 and the mean of y.
    assert float(slope[0, 1]) == pytest.approx(1.0, rel=1e-5)
    assert float(slope[1, 2]) == pytest.approx(2.0, abs=0.2)


def test_a_target_can_be_given_later(chain):
    assert chain.with_target("z").target == "z"
    assert chain.target is None
    with pytest.raises(ValueError, match="no variable 'q'"):
        chain.with_target("q")
