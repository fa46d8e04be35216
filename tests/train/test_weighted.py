"""Micro-batches of unequal weight add up to the step of the whole batch."""

import functools
import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from draws import normal
from frugax import MemoryBudget, train
from refusals import refuses
from tiers import mostly_thorough

X = normal(0, 16, 3)
W = {"w": jnp.full((3, 2), 0.1)}
UNEVEN = (0, 4, *range(8, 16))
EMPTY_PART = tuple(i for i in range(16) if i % 4 != 1)


def batch_of(rows):
    valid = jnp.zeros(16).at[jnp.array(rows, int)].set(1.0)
    return {"x": X, "y": jnp.tanh(X[:, :2]), "valid": valid}


def errors(p, b):
    return ((b["x"] @ p["w"] - b["y"]) ** 2).mean(-1)


def weighted(p, b):
    e, valid = errors(p, b), b["valid"]
    worst = train.Weighted((e**2 * valid).sum(), valid.sum())
    return train.Weighted((e * valid).sum(), valid.sum()), {"square": worst}


def mean_of_valid(p, b):
    return (errors(p, b) * b["valid"]).sum() / b["valid"].sum()


def take_step(loss, batch, **options):
    return take_step_of(train.make_train_step(loss, optax.sgd(1.0), **options), batch)


def take_step_of(step, batch):
    state, metrics = step(step.init(W), batch)
    return np.asarray(state.params["w"]), {k: float(v) for k, v in metrics.items()}


OPTIONS = {
    "plain": {},
    "budget": {"budget": MemoryBudget("1MiB")},
    "clip": {"clip": 0.01},
    "layout": {"layout": train.distributed.Layout.over((1,))},
}


@functools.cache
def weighted_step(option, accum):
    options: dict[str, Any] = OPTIONS[option] | {"accum": accum}
    return train.make_train_step(weighted, optax.sgd(1.0), **options)


ROWS = (UNEVEN, EMPTY_PART, tuple(range(16)), (3,), ())
ACCUMS = (2, 4, 16)


@pytest.mark.parametrize(
    "case",
    # Each choice of rows in some number of parts, and each option with the first ones.
    mostly_thorough(
        itertools.product(OPTIONS, ACCUMS, range(len(ROWS))),
        in_ci=lambda case: (
            ACCUMS.index(case[1]) == case[2] % 3
            if case[0] == "plain"
            else case[1:] in ((4, 0), (4, 1))
        ),
    ),
    ids=str,
)
def test_parts_of_any_weight_give_the_step_of_the_batch(case):
    option, accum, rows = case
    batch = batch_of(ROWS[rows])
    whole, told = take_step_of(weighted_step(option, 1), batch)
    parts, told_parts = take_step_of(weighted_step(option, accum), batch)
    np.testing.assert_allclose(parts, whole, atol=1e-6)
    assert told_parts == pytest.approx(told, abs=1e-6)
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_lower_precisions_weigh_parts_too(precision):
    whole, told = take_step(weighted, batch_of(UNEVEN), precision=precision)
    options = {"precision": precision, "accum": 4}
    parts, told_parts = take_step(weighted, batch_of(UNEVEN), **options)
    np.testing.assert_allclose(parts, whole, atol=5e-3)
    assert told_parts["loss"] == pytest.approx(told["loss"], rel=5e-3)


def test_the_step_is_that_of_the_quotient():
    batch = batch_of(UNEVEN)
    expected, told = take_step(mean_of_valid, batch)
    found, told_weighted = take_step(weighted, batch, accum=4)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert told_weighted["loss"] == pytest.approx(told["loss"], rel=1e-6)


def test_a_mean_weight_may_be_a_number():
    loss = lambda p, b: train.Weighted(errors(p, b).sum(), b["x"].shape[0])
    whole, _ = take_step(loss, batch_of(UNEVEN))
    parts, _ = take_step(loss, batch_of(UNEVEN), accum=4)
    np.testing.assert_allclose(parts, whole, atol=1e-6)


def sum_of_rows(p, b):
    return errors(p, b).sum()


def of_means(p, b):
    return jnp.sqrt(errors(p, b).mean())


def with_worst(p, b):
    return errors(p, b).mean(), {"worst": errors(p, b).max()}


@pytest.mark.parametrize(
    ("loss", "name", "precision"),
    [
        (mean_of_valid, "loss", "f32"),
        (sum_of_rows, "loss", "f32"),
        (of_means, "loss", "f32"),
        (with_worst, "worst", "f32"),
        (mean_of_valid, "loss", "bf16"),
    ],
)
def test_a_loss_that_is_not_a_mean_over_rows_is_named(loss, name, precision):
    step = train.make_train_step(loss, optax.sgd(0.1), accum=4, precision=precision)
    state = step.init(W)
    with pytest.warns(train.AccumulationWarning) as told:
        state, _ = step(state, batch_of(UNEVEN))
    assert name in str(told[0].message)
    with warnings.catch_warnings():  # once
        warnings.simplefilter("error")
        step(state, batch_of(UNEVEN))


def test_a_mean_over_rows_is_not_named():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_step(lambda p, b: errors(p, b).mean(), batch_of(UNEVEN), accum=4)


def test_a_part_whose_loss_is_nan_is_refused():
    step = train.make_train_step(mean_of_valid, optax.sgd(1.0), accum=4)
    state = step.init(W)
    with refuses(ValueError, "4 micro-batches", "part 1"):
        step(state, batch_of(EMPTY_PART))


def test_a_large_batch_is_compared_in_parts():
    # The loss of all rows at once would need more than the step may.
    def wide(p, b):
        hidden = jnp.tanh(b["x"] @ jnp.ones((3, 512)))
        hidden = jnp.sort(hidden, axis=-1) @ jnp.ones((512, 2))
        e = ((hidden * p["w"].sum() - b["y"]) ** 2).mean(-1)
        return (e * b["valid"]).sum() / b["valid"].sum()

    rows = jnp.tile(X, (64, 1))
    valid = jnp.zeros(1024).at[:900].set(1.0).at[5:250].set(0.0)
    batch = {"x": rows, "y": jnp.tanh(rows[:, :2]), "valid": valid}
    with pytest.warns(train.AccumulationWarning) as told:
        take_step(wide, batch, accum=4)
    assert "other rows in each part" in str(told[0].message)


def test_a_loss_with_random_keys_or_side_effects_is_not_compared():
    seen = []

    def noisy(p, b):
        noise = jax.random.normal(b["key"], b["x"].shape)
        return errors(p, {**b, "x": b["x"] + noise}).mean()

    def printing(p, b):
        value = mean_of_valid(p, b)
        jax.debug.callback(seen.append, value)
        return value

    batch = batch_of(UNEVEN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_step(noisy, {**batch, "key": jax.random.key(1)}, accum=4)
        take_step(printing, batch, accum=4)
        jax.effects_barrier()
    assert len(seen) == 4


def test_a_key_that_is_not_in_the_batch_is_named_as_the_reason():
    def noisy(p, b):
        noise = jax.random.normal(jax.random.key(1), b["x"].shape)
        return errors(p, {**b, "x": b["x"] + noise}).mean()

    with pytest.warns(train.AccumulationWarning) as told:
        take_step(noisy, batch_of(UNEVEN), accum=4)
    assert "jax.random.key" in str(told[0].message)
    assert "Weighted" not in str(told[0].message)


def test_fit_weighs_parts():
    batch = batch_of(UNEVEN)
    ends = []
    for accum in (1, 4):
        step = train.make_train_step(weighted, optax.sgd(0.1), accum=accum)
        result = train.fit(step, step.init(W), [batch], steps=5, compile_cache=False)
        ends.append(np.asarray(result.state.params["w"]))
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-6)
