"""Known problems: their means against simulation, their optima against papers."""

import numpy as np
import pytest

from frugax import causal
from frugax.causal import SCM, environment_from_scm, intervene, load_environment
from refusals import refuses

CASES = {
    "toy": [{}, {"X": -1.13}, {"X": 2.0}, {"Z": 3.1}, {"X": 0.0, "Z": -3.2}],
    "complete": [
        {},
        {"B": -1.0},
        {"D": 3.3},
        {"E": -1.0},
        {"B": -5.0, "D": 3.3},
        {"B": 1.0, "E": 2.0},
        {"D": -1.0, "E": 2.0},
    ],
    "psa": [{}, {"statin": 1.0}, {"aspirin": 0.3}, {"aspirin": 0.0, "statin": 1.0}],
    "epidemiology": [{}, {"T": 5.5}, {"R": -3.46}, {"T": 5.5, "R": -0.32}],
}


@pytest.mark.parametrize("name", CASES)
def test_quadrature_agrees_with_the_simulator(name):
    problem, n = load_environment(name), 40_000
    for values in CASES[name]:
        do = intervene(**values)
        y = problem.sample(n, seed=1, intervention=do)[problem.target]
        # Five standard errors, as there are twenty of them.
        error = float(y.std()) / n**0.5
        assert problem.expected(do) == pytest.approx(float(y.mean()), abs=5 * error)


@pytest.mark.parametrize(
    ("name", "optimum", "targets"),
    # From the problems' papers, computed again: docs/causal_scm.md.
    [
        ("toy", -2.172, ("Z",)),
        ("complete", -3.48, ("B", "D")),
        ("psa", 5.155, ("aspirin", "statin")),
        ("epidemiology", -1.4998, ("R", "T")),
    ],
)
def test_the_optimum_is_the_known_one(name, optimum, targets):
    problem = load_environment(name)
    assert problem.best.targets == targets
    assert problem.optimum == pytest.approx(optimum, abs=5e-3)
    assert problem.expected(problem.best) == pytest.approx(problem.optimum, abs=1e-9)
    assert problem.regret(problem.best) == pytest.approx(0, abs=1e-9)
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = {key: rng.uniform(*ends) for key, ends in problem.ranges.items()}
        assert problem.regret(intervene(**values)) > -1e-9


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("toy", {"Z": 3.10}, -1.856),  # the second basin, a trap
        ("toy", {"X": -1.13}, -1.462),
        ("psa", {}, 5.806),
        ("psa", {"statin": 1.0}, 5.344),
        ("epidemiology", {"T": 5.5}, -1.437),
        ("complete", {"B": -5.0}, -1.23),
    ],
)
def test_other_interventions_have_their_known_means(name, values, expected):
    known = load_environment(name).expected(intervene(**values))
    assert known == pytest.approx(expected, abs=5e-3)


def test_regret_counts_only_where_the_best_was_sought():
    linear = SCM.linear({"x": {}, "z": {}, "y": {"x": 1.0, "z": 1.0}}, target="y")
    problem = environment_from_scm(linear, (-0.1, 0.1))
    assert problem.expected(intervene(x=-5.0)) == -5
    with refuses(ValueError, "x", "[-0.1, 0.1]"):
        problem.regret(intervene(x=-5.0))
    with refuses(ValueError, "x"):
        problem.regret(intervene(x=-0.1, z=-0.1))
    # Rounded to float32 an end is a little outside.
    assert problem.regret(intervene(x=float(np.float32(-0.1)))) == pytest.approx(
        0, abs=1e-6
    )


def test_hidden_causes_are_not_shown():
    problem = load_environment("complete")
    shown = problem.sample(3, seed=0).variables
    assert shown == problem.variables
    assert not {"U1", "U2"} & set(shown)
    assert {"U1", "U2"} < set(problem.scm.variables)


def test_an_impossible_experiment_is_refused():
    toy = load_environment("toy")
    for do in (intervene(Y=0.0), causal.shift(Z=1.0)):
        with refuses(ValueError, "toy"):
            toy.expected(do)
    with refuses(ValueError, "coral"):
        load_environment("coral")


@pytest.mark.parametrize("name", CASES)
def test_the_expectation_is_the_mean_of_many_rows(name):
    problem, n = load_environment(name), 20_000
    y = problem.sample(n, seed=0)[problem.target]
    error = float(y.std()) / n**0.5
    assert problem.expected() == pytest.approx(float(y.mean()), abs=5 * error)


@pytest.mark.parametrize("minimize", [True, False])
def test_a_linear_model_has_its_optimum_at_an_end_of_a_range(minimize):
    scm = SCM.linear(
        {"a": {}, "b": {"a": 2.0}, "y": {"a": 1.0, "b": -1.5}, "c": {"y": 9.0}},
        target="y",
    )
    problem = environment_from_scm(scm, (-1.0, 2.0), minimize=minimize)
    # y = a - 1.5 b: do(a) gives -2 a, do(b) -1.5 b; c is an effect and does nothing.
    best = {True: intervene(a=2.0), False: intervene(a=-1.0)}[minimize]
    assert problem.best == best
    assert problem.optimum == pytest.approx(-4.0 if minimize else 2.0)
    assert problem.regret(intervene(c=1.0)) == pytest.approx(abs(problem.optimum))
    both = environment_from_scm(scm, (-1.0, 2.0), minimize=minimize, max_targets=2)
    # With b set too, a counts alone: -1 - 3, or 2 + 1.5.
    assert both.optimum == pytest.approx(-4.0 if minimize else 3.5)


def test_a_bent_model_has_its_optimum_inside():
    scm = SCM.create({"a": {}, "y": lambda p, e: (p["a"] - 0.7) ** 2 + e}, target="y")
    problem = environment_from_scm(scm, {"a": (-3.0, 3.0)})
    assert problem.best.values["a"] == pytest.approx(0.7, abs=1e-3)
    assert problem.optimum == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(
    ("target", "ranges", "named"),
    [
        (None, (-1.0, 1.0), "target"),
        ("y", {"y": (0.0, 1.0)}, "'y'"),
        ("y", {"x": (1.0, 0.0)}, "'x'"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(target, ranges, named):
    scm = SCM.linear({"x": {}, "y": {"x": 1.0}}, target=target)
    with refuses(ValueError, named):
        environment_from_scm(scm, ranges)
