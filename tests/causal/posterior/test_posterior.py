"""Mechanisms and posterior samples: they fit the data and vary elsewhere."""

import numpy as np
import pytest

from frugax.causal.posterior import (
    NOISE_SCALE,
    Domain,
    Points,
    fit_mechanism,
    log_evidence,
    predict_means,
    sample_posterior,
    tempering_power,
)


def data_of(rng, n=300):
    x = rng.uniform(-3, 3, n)
    y = np.sin(2 * x) + 0.1 * rng.normal(size=n)
    return np.stack([x, y], 1)


def domain_of(values):
    nothing = np.full(values.shape[1], np.nan)
    return Domain.from_data(values, np.ones(len(values), bool), nothing, nothing)


def test_a_bend_is_fitted_inside_the_data():
    values = data_of(np.random.default_rng(0))
    domain = domain_of(values)
    found, mechanisms = fit_mechanism(values[:, 1], values[:, :1], (0,), domain)
    assert found.probs.sum() == pytest.approx(1)
    x = np.linspace(-2.5, 2.5, 21)[:, None]
    rng, at = np.random.default_rng(1), [domain.normalize(x, 0)]
    fitted = np.mean([mechanisms[0].sample(rng)(at) for _ in range(60)], axis=0)
    np.testing.assert_allclose(fitted, np.sin(2 * x), atol=0.12)
    again, _ = fit_mechanism(values[:, 1], values[:, :1], (0,), domain)
    assert again.candidates == found.candidates
    np.testing.assert_array_equal(again.probs, found.probs)


def test_draws_vary_outside_the_data():
    values = data_of(np.random.default_rng(0))
    values = values[values[:, 0] < 0]
    domain = Domain.from_data(
        values, np.ones(len(values), bool), *np.array([[-3, np.nan], [3, np.nan]])
    )
    rng = np.random.default_rng(1)
    _, mechanisms = fit_mechanism(values[:, 1], values[:, :1], (0,), domain)
    at = domain.normalize(np.array([[-1.5], [2.5]]), 0)
    drawn = np.array([mechanisms[0].sample(rng)([at])[:, 0] for _ in range(60)])
    assert drawn[:, 0].std() < 0.1
    assert drawn[:, 1].std() > 0.3


def drawn_at(values, points, count=60):
    """Functions of the first column that agree with the second, at some points."""
    domain = domain_of(values)
    rng = np.random.default_rng(1)
    found, each = fit_mechanism(values[:, 1], values[:, :1], (0,), domain)
    at = [domain.normalize(np.array(points)[:, None], 0)]
    which = rng.choice(len(each), count, p=found.probs)
    return np.array([each[i].sample(rng)(at)[:, 0] for i in which])


def test_extrapolation_is_uncertain_for_bends_and_linear_for_lines():
    rng = np.random.default_rng(0)
    bent = drawn_at(data_of(rng), [0.0, 6.0, -6.0])
    assert bent[:, 0].std() < 0.1
    assert (bent[:, 1:].std(0) > 0.5).all()
    x = rng.uniform(-3, 3, 300)
    line = np.stack([x, 2 * x + 0.1 * rng.normal(size=300)], 1)
    straight = drawn_at(line, [6.0, -6.0])
    np.testing.assert_allclose(np.median(straight, 0), [12.0, -12.0], atol=0.2)
    assert (np.quantile(straight, 0.75, 0) - np.quantile(straight, 0.25, 0) < 0.5).all()


def test_a_different_level_outside_the_range_is_fitted_from_its_rows():
    rng = np.random.default_rng(0)
    inside = data_of(rng, 2000)
    x = rng.uniform(5, 6, 15)  # too few to determine the range
    outside = np.stack([x, 4 + 0.1 * rng.normal(size=15)], 1)
    drawn = drawn_at(np.concatenate([inside, outside]), [0.0, 5.5, -6.0])
    np.testing.assert_allclose(drawn[:, :2].mean(0), [0.0, 4.0], atol=0.2)
    assert drawn[:, 1].std() < 0.2 < drawn[:, 2].std()


def test_tempered_rows_are_weaker_evidence_for_a_graph():
    rng = np.random.default_rng(3)
    x = rng.normal(size=100)
    values = np.stack([x, 0.1 * x + rng.normal(size=100)], 1)

    def edge(times, weight=1.0):
        rows = np.tile(values, (times, 1))
        there = sample_posterior(
            rows,
            np.zeros(rows.shape, bool),
            domain_of(values),
            count=400,
            rng=np.random.default_rng(0),
            row_weights=np.full(len(rows), weight),
        )
        return there.edges[0, 1] + there.edges[1, 0]

    assert 0.2 < edge(2) < 0.9
    assert edge(100) > 0.99
    assert edge(100, 1 / 50) == edge(2)


def test_functions_stay_uncertain_with_any_number_of_rows():
    assert tempering_power(0) == 1
    assert 900 < 10**4 * tempering_power(10**4) < 10**6 * tempering_power(10**6) < 1000
    unsure = [
        drawn_at(data_of(np.random.default_rng(0), n), [0.5], 400).std()
        for n in (200, 2000, 20_000)
    ]
    assert unsure[0] > 1.5 * unsure[1]
    assert unsure[2] > 0.7 * unsure[1]


def test_evidence_is_the_density_of_the_data():
    """One constant column: integrated numerically over the weight and the noise."""
    y = np.array([0.3, -1.1, 0.4])
    found = log_evidence(
        np.array([[3.0]]), np.array([y.sum()]), float(y @ y), 3, np.array([2.0])
    )
    t = np.linspace(-12, 12, 4001)
    variance = np.exp(np.linspace(-9, 9, 2001))
    # Inverse gamma of shape 1, in the log of the variance.
    prior = NOISE_SCALE / variance * np.exp(-NOISE_SCALE / variance)
    weight = t[:, None] * np.sqrt(2 * variance)
    fit = ((y[:, None, None] - weight) ** 2).sum(0) / variance
    density = (
        np.exp(-0.5 * fit - 0.5 * t[:, None] ** 2) * (2 * np.pi * variance) ** -1.5
    )
    inner = density.sum(0) * (t[1] - t[0]) / np.sqrt(2 * np.pi)
    exact = (inner * prior).sum() * 18 / 2000
    assert float(found) == pytest.approx(np.log(exact), abs=1e-3)


def test_a_noiseless_cause_is_not_taken_for_an_effect():
    """`b` is known exactly from `a` and `c`, but only as `c` is made of both."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=300)
    b = 0.1 * a + rng.normal(size=300)
    values = np.stack([a, b, a + 0.1 * b], 1)
    domain = Domain(np.zeros(3), np.full(3, 3.0))
    ensemble = sample_posterior(
        values, np.zeros(values.shape, bool), domain, count=32, rng=rng
    )
    assert ensemble.edges[2, 1] < 0.5 < ensemble.edges[1, 2]


def test_samples_predict_the_effects_of_interventions():
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    z = -x + 0.3 * rng.normal(size=300)
    y = 2 * z + 0.3 * rng.normal(size=300)
    values = np.stack([x, z, y], 1)
    ensemble = sample_posterior(
        values,
        np.zeros(values.shape, bool),
        domain_of(values),
        count=12,
        rng=rng,
        required=[(0, 1), (1, 2)],
        forbidden=[(0, 2)],
        outputs=[2],
    )
    points = Points(((0,), (1,)), (np.array([[1.0]]), np.array([[1.0]])))
    found = predict_means(ensemble, points, [2], rng)[:, :, 0]
    np.testing.assert_allclose(found.mean(0), [-2.0, 2.0], atol=0.2)


@pytest.mark.parametrize("levels", [None, (5, 3)])
def test_causes_that_act_only_together_are_found(levels):
    """A product of two, and a checkerboard of categories: neither is seen alone."""
    rng = np.random.default_rng(0)
    if levels is None:
        a, b = rng.normal(size=(2, 100))
        y = a * b
    else:
        a, b = (rng.integers(0, n, 100) for n in levels)
        board = rng.normal(size=levels)
        board -= board.mean(0)
        y = (board - board.mean(1, keepdims=True))[a, b]
    other = rng.normal(size=100)
    values = np.stack([a, b, other, y + 0.4 * y.std() * rng.normal(size=100)], 1)
    ensemble = sample_posterior(
        values,
        np.zeros(values.shape, bool),
        domain_of(values),
        count=32,
        rng=rng,
        forbidden=[(3, 0), (3, 1), (3, 2)],
    )
    assert ensemble.edges[[0, 1], 3].min() > 0.9
    assert ensemble.edges[2, 3] < 0.4


def test_an_unmeasured_cause_is_not_counted_as_an_effect():
    """`u` moves both: seen, `y` rises with `x`; set, it falls."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=1000)
    x = u + rng.normal(size=1000)
    x[760:] = np.repeat([-3.0, 0.0, 3.0], 80)
    y = 3 * u - x + 2 * rng.normal(size=1000)
    values = np.stack([x, y], 1)
    set_ = np.zeros(values.shape, bool)
    set_[760:, 0] = True
    ensemble = sample_posterior(
        values, set_, domain_of(values), count=12, rng=rng, outputs=[1]
    )
    points = Points(((0,),), (np.array([[-2.0], [2.0]]),))
    found = predict_means(ensemble, points, [1], rng)[:, :, 0].mean(0)
    assert found[1] - found[0] == pytest.approx(-4.0, abs=0.8)


def test_an_outlier_does_not_stretch_the_range():
    values = np.random.default_rng(0).normal(size=(500, 1))
    calm = domain_of(values)
    values[0] = 1e6
    np.testing.assert_allclose(domain_of(values).half_width, calm.half_width, rtol=0.05)


@pytest.mark.parametrize("unit", [1e-15, 1e9])
def test_the_unit_of_a_column_does_not_matter(unit):
    values = data_of(np.random.default_rng(0), 60)
    told = []
    for size in (1.0, unit):
        domain = domain_of(values * size)
        _, mechanisms = fit_mechanism(
            values[:, 1] * size, values[:, :1] * size, (0,), domain
        )
        at = domain.normalize(np.linspace(-2, 2, 9)[:, None] * size, 0)
        told.append(mechanisms[0].sample(np.random.default_rng(1))([at]) / size)
    np.testing.assert_allclose(told[1], told[0], atol=1e-6)
    # Rounding alone is not a spread: a constant is left unchanged.
    constant = np.full((40, 1), 0.1 * unit)
    assert domain_of(constant).half_width == 1
    assert fit_mechanism(constant[:, 0], constant[:, :0], (), domain)[1][0].spread == 1
