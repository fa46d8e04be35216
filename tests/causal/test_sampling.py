"""Samples of models: by their formula, and with the moments that they state."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import causal
from frugax.causal import SCM, intervene, scale, shift
from frugax.causal.scm import (
    FAMILIES,
    NOISES,
    evaluate,
    noise_from_uniform,
    sample_noise,
)
from refusals import refuses

D, N = 6, 40


@pytest.mark.parametrize("family", ["linear", "mlp", "rff", "mixed"])
def test_rows_are_what_the_formula_makes_of_the_noise(family):
    scm = causal.generate_scm(
        "erdos_renyi", D, family=family, heteroscedastic=True, seed=len(family)
    )
    one = jax.tree.map(lambda a: np.asarray(a)[None], scm.mechanisms)
    noise = sample_noise(np.random.default_rng(0), one.noise, N)
    change = intervene(x1=2.0) | shift(x2=1.0) | scale(x3=0.5)
    keep, offset, _, _ = change.arrays(scm.variables)
    found, _ = evaluate(
        one, noise, keep=keep[None, :, None], offset=offset[None, :, None]
    )
    m, x = scm.mechanisms, np.zeros((N, D))
    for j in m.order:
        act = np.cos if m.kind[j] == FAMILIES.index("rff") else np.tanh
        hidden = act(x @ m.inner[:, j] + m.phase[j]) @ m.outer[j]
        size = m.noise_scale[j] * np.exp(np.tanh(x @ m.spread[:, j]))
        raw = m.bias[j] + x @ m.weight[:, j] + hidden + size * noise[0, j]
        x[:, j] = keep[j] * (raw - m.centre[j]) / m.scale[j] + offset[j]
    np.testing.assert_allclose(found[0].T, x, atol=2e-5)


def test_functions_are_called_by_name():
    scm = SCM.create(
        {"x": {}, "y": lambda p, e: p["x"] ** 2 - e, "z": {"y": 2.0}},
        noise_scale={"y": 0.0, "z": 0.0},
    )
    data = causal.sample(scm, 20, seed=0, intervention=intervene(x=3.0))
    np.testing.assert_allclose(data.values, [[3.0, 9.0, 18.0]] * 20, rtol=1e-6)


@pytest.mark.parametrize("kind", NOISES)
def test_noise_has_mean_0_and_variance_1(kind):
    n, index = 200_000, NOISES.index(kind)
    drawn = sample_noise(np.random.default_rng(0), np.full((1, 1), index), n)[0, 0]
    even = (np.arange(n) + 0.5) / n
    exact = noise_from_uniform(jnp.asarray(even, jnp.float32), jnp.array([index]))
    # Four standard errors; a variance of Student's noise converges slower than most.
    assert abs(drawn.mean()) < 4 / n**0.5
    assert drawn.var() == pytest.approx(1, abs=0.08 if kind == "student" else 0.02)
    assert float(exact.mean()) == pytest.approx(0, abs=1e-3)
    assert float(exact.var()) == pytest.approx(1, abs=0.02)
    # The same distribution in both: equal quantiles.
    at = [0.02, 0.1, 0.3, 0.6, 0.95]
    np.testing.assert_allclose(
        np.quantile(drawn, at), np.quantile(exact, at), atol=0.03
    )


def test_standardized_models_have_unit_variables_and_the_same_graph():
    scm = SCM.linear(
        {"x": {}, "y": {"x": 50.0}, "z": {"y": -3.0, "x": 1.0}}, bias={"y": 100.0}
    )
    data = causal.sample(causal.standardize(scm), 20_000, seed=5)
    np.testing.assert_allclose(data.values.mean(0), 0, atol=0.1)
    np.testing.assert_allclose(data.values.std(0), 1, atol=0.05)
    unit = causal.standardize(scm)
    np.testing.assert_array_equal(unit.adjacency, scm.adjacency)
    constant = SCM.linear({"c": {}}, noise_scale=0.0, bias={"c": 7.0})
    unit = causal.standardize(constant)
    assert causal.sample(unit, 3, seed=0)["c"].tolist() == [0] * 3


def test_a_seed_gives_the_same_rows_and_another_others():
    scm = causal.generate_scm("scale_free", 4, seed=0)
    rows = [causal.sample(scm, 5, seed=seed).values for seed in (1, 1, 2)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert (rows[0] != rows[2]).all()
    assert len(causal.sample(scm, 0, seed=0)) == 0
    with refuses(ValueError, "n"):
        causal.sample(scm, -1, seed=0)


def test_an_expectation_is_the_average_of_many_draws():
    scm = causal.generate_scm("erdos_renyi", 5, family="mlp", seed=4)
    at, target = np.array([-1.0, 2.0]), scm.order[-1]
    exact = causal.interventional_mean(scm, target, {"x0": at})
    n = 20_000
    for value, mean in zip(at, exact, strict=True):
        data = causal.sample(scm, n, seed=0, intervention=intervene(x0=float(value)))
        error = float(data[target].std()) / n**0.5
        assert data[target].mean() == pytest.approx(mean, abs=4 * error + 0.005)
    functions = dataclasses.replace(scm, functions=(None,) * 5)
    np.testing.assert_allclose(
        causal.interventional_mean(functions, target, {"x0": at}), exact, rtol=1e-5
    )


@pytest.mark.thorough
def test_quasi_random_noise_has_the_error_its_docstring_states():
    errors = []
    for seed in range(12):
        family = ("mlp", "rff")[seed % 2]
        scm = causal.generate_scm("erdos_renyi", 10, family=family, seed=seed)
        at = {scm.order[0]: np.array([-2.0, 1.5])}
        close = causal.interventional_mean(scm, scm.order[-1], at, nodes=2**16)
        errors.append(
            np.abs(causal.interventional_mean(scm, scm.order[-1], at) - close).max()
        )
    assert np.median(errors) < 0.004
    assert max(errors) < 0.025
