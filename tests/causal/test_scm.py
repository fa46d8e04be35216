"""Causal models: refused inputs, parents read from functions, and pytrees."""

import jax
import numpy as np
import pytest

from frugax import causal
from frugax.causal import SCM
from refusals import refuses


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
    ("equations", "options", "named"),
    [
        ({}, {}, "variable"),
        ({"": {}}, {}, "''"),
        ({"a": {"b": 1.0}}, {}, "'a'"),
        ({"a": {"b": 1.0}, "b": {"a": 1.0}}, {}, "a -> b -> a"),
        ({"a": {"a": 1.0}}, {}, "a -> a"),
        (
            {"r": {}, "c": {"b": 1.0, "r": 1.0}, "a": {"c": 1.0}, "b": {"a": 1.0}},
            {},
            "c -> a -> b -> c",
        ),
        ({"a": {}, "b": {"a": float("nan")}}, {}, "'a'"),
        ({"a": {}}, {"noise_scale": -1.0}, "noise_scale"),
        ({"a": {}}, {"noise_scale": float("inf")}, "noise_scale"),
        ({"a": {}}, {"noise": "cauchy"}, "'a'"),
        ({"a": {}}, {"noise": {"b": "uniform"}}, "'b'"),
        ({"a": {}}, {"bias": {"b": 1.0}}, "'b'"),
        ({"a": {}}, {"target": "b"}, "'b'"),
        ({"a": {}}, {"hidden": ["b"]}, "'b'"),
        ({"a": {}}, {"target": "a", "hidden": ["a"]}, "hidden"),
    ],
)
def test_an_invalid_model_is_refused_with_its_place(equations, options, named):
    with refuses(ValueError, named):
        SCM.linear(equations, **options)


def test_arguments_that_a_function_replaces_are_refused():
    own = lambda p, e: p["a"] + e
    with refuses(ValueError, "'b'"):
        SCM.create({"a": {}, "b": own}, bias={"b": 1.0})
    with refuses(ValueError, "'b'", "parents"):
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
    ("equation", "named"),
    [
        (lambda p, e: p["q"] + e, "'q'"),
        (lambda p: p["x"], "(parents, noise)"),
        (lambda p, e: np.add(p["x"], e, out=p["x"]), "'y'"),
        (lambda p, e: np.zeros(3), "'y'"),
        (lambda p, e: "abc", "'y'"),
        (lambda p, e: None, "'y'"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(equation, named):
    with refuses(ValueError, named):
        SCM.create({"x": {}, "y": equation})


@pytest.mark.parametrize(
    ("equation", "named"),
    [
        (
            lambda p, e: p["x"] + e,
            "'x'",
        ),
        (
            lambda p, e: e if p["w"] > 0 else -e,
            "'y'",
        ),
        (lambda p, e: np.add(p["w"], e, out=p["w"]), "'y'"),
        (lambda p, e: np.zeros(3), "(3,)"),
    ],
)
def test_a_function_that_fails_later_is_reported_by_name(equation, named):
    scm = SCM.create({"x": {}, "w": {}, "v": {}, "y": equation}, parents={"y": "wv"})
    with refuses(ValueError, named):
        causal.sample(scm, 4, seed=0)


def test_a_function_that_leaves_the_numbers_names_its_variable():
    scm = SCM.create({"x": {}, "y": lambda p, e: 1 / (0 * p["x"]), "z": {"y": 1.0}})
    with (
        np.errstate(divide="ignore", invalid="ignore"),
        refuses(ValueError, "'y'"),
    ):
        causal.sample(scm, 3, seed=0)


def test_a_model_is_a_pytree_with_its_names_outside(chain):
    doubled = jax.tree.map(lambda a: a, chain)
    assert doubled.variables == chain.variables
    assert doubled.order == chain.order


def test_a_target_can_be_given_later(chain):
    assert chain.with_target("z").target == "z"
    assert chain.target is None
    with refuses(ValueError, "'q'"):
        chain.with_target("q")
