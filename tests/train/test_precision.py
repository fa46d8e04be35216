"""Precision, accumulation, clipping and static values change a step as documented."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import MemoryBudget, train
from refusals import refuses

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 8)).astype(np.float32)
Y = RNG.normal(size=(24,)).astype(np.float32)
BATCH = {"x": X, "y": Y, "temperature": np.float32(1.0)}


def params():
    rng = np.random.default_rng(1)
    return {
        "a": rng.normal(size=(8, 16)).astype(np.float32) / 3,
        "b": rng.normal(size=(16,)).astype(np.float32) / 4,
    }


def loss(p, batch):
    out = jnp.tanh(batch["x"] @ p["a"]) @ p["b"] / batch["temperature"]
    error = out - batch["y"]
    return (error**2).mean(), {"bias": error.mean()}


def train_steps(n, **options):
    step = train.make_train_step(loss, optax.adam(1e-2), **options)
    state = step.init(params())
    told = []
    for _ in range(n):
        state, metrics = step(state, BATCH)
        told.append({k: float(v) for k, v in metrics.items()})
    return step, state, told


@pytest.mark.parametrize(
    "parts", [3, *(pytest.param(n, marks=pytest.mark.thorough) for n in (2, 8))]
)
@pytest.mark.parametrize("budget", [None, MemoryBudget("1MiB")])
def test_micro_batches_give_the_same_step(parts, budget):
    _, whole, told = train_steps(5)
    _, cut, told_cut = train_steps(5, accum=parts, budget=budget)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(cut), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for a, b in zip(told, told_cut, strict=True):
        assert a == pytest.approx(b, abs=1e-6)


def test_an_indivisible_batch_is_refused_with_divisible_lengths():
    step = train.make_train_step(loss, optax.adam(1e-2), accum=5)
    with refuses(ValueError, 24):
        step(step.init(params()), BATCH)
    odd = {**BATCH, "y": Y[:12]}
    with refuses(ValueError, "batch['y']", "(24, 8)"):
        step(step.init(params()), odd)


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_lower_precision_computes_low_and_keeps_float32(precision):
    step, state, told = train_steps(60, precision=precision)
    _, _, exact = train_steps(60)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {np.dtype("float32")}
    assert told[-1]["loss"] == pytest.approx(exact[-1]["loss"], abs=0.02)
    assert told[-1]["loss"] != exact[-1]["loss"]
    low = {"bf16": "bf16", "f16": "f16"}[precision]
    text = step.lower(state, BATCH).as_text()
    assert f"x16x{low}>" in text or f"24x16x{low}" in text
    assert "dot_general" in text


def test_an_overflow_skips_the_step_and_halves_the_scale():
    step = train.make_train_step(loss, optax.adam(1e-2), precision="f16")
    state = step.init(params())
    state, _ = step(state, BATCH)
    assert state.scale is not None
    before = jax.tree.map(np.asarray, (state.params, state.opt_state))
    scale = float(state.scale.scale)
    huge = {**BATCH, "y": Y * np.float32(1e4)}
    state, metrics = step(state, huge)
    assert float(metrics["skipped"]) == 1
    for a, b in zip(
        jax.tree.leaves(before),
        jax.tree.leaves((state.params, state.opt_state)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert state.scale is not None
    assert float(state.scale.scale) == scale / 2
    assert int(state.step) == 2


def test_the_scale_grows_after_many_sound_steps():
    step = train.make_train_step(loss, optax.sgd(0.0), precision="f16")
    state = step.init(params())
    assert state.scale is not None
    ready = state.scale._replace(sound=jnp.int32(1999))
    state, _ = step(state._replace(scale=ready), BATCH)
    assert state.scale is not None
    assert float(state.scale.scale) == 2.0**16
    assert int(state.scale.sound) == 0


def test_clipping_bounds_the_gradient_and_reports_it():
    step = train.make_train_step(loss, optax.sgd(1.0), clip=0.01)
    state = step.init(params())
    start = jax.tree.map(np.asarray, state.params)
    grads = jax.jit(jax.grad(lambda p: loss(p, BATCH)[0]))(start)
    norm = float(optax.tree.norm(grads))
    assert norm > 0.01
    state, metrics = step(state, BATCH)
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-5)
    moved = jax.tree.map(lambda a, b: a - b, start, state.params)
    assert float(optax.tree.norm(moved)) == pytest.approx(0.01, rel=1e-4)


def test_a_static_value_reaches_the_loss_unchanged():
    seen = []

    def with_static(p, batch, layers):
        seen.append(layers)
        return loss(p, batch)[0] * len(layers["names"])

    static = {"names": ["a", "b"], "sets": {frozenset({"x"})}}
    step = train.make_train_step(with_static, optax.sgd(0.1), static=static)
    state = step.init(params())
    state, metrics = step(state, BATCH)
    assert seen[0] == static
    assert float(metrics["loss"]) == pytest.approx(2 * float(loss(params(), BATCH)[0]))
    traced = len(seen)
    step(state, BATCH)
    assert len(seen) == traced


def noisy(params, batch):
    noise = jax.random.normal(batch["key"], ())
    return loss(params, batch)[0], {"noise": noise, "rate": batch["rate"]}


def test_each_micro_batch_has_its_own_key_and_shares_scalars():
    key, parts = jax.random.key(3), 4
    step = train.make_train_step(noisy, optax.sgd(0.1), accum=parts)
    batch = {**BATCH, "key": key, "rate": jnp.float32(0.5)}
    _, metrics = step(step.init(params()), batch)
    keys = [jax.random.fold_in(key, i) for i in range(parts)]
    expected = np.mean([jax.random.normal(k, ()) for k in keys])
    assert float(metrics["noise"]) == pytest.approx(float(expected), rel=1e-5)
    assert float(metrics["rate"]) == 0.5


def test_an_old_style_random_key_is_not_mistaken_for_rows():
    step = train.make_train_step(noisy, optax.sgd(0.1), accum=2)
    batch = {**BATCH, "key": jax.random.PRNGKey(0), "rate": 0.5}
    with refuses(ValueError, "jax.random.key", "batch['key']"):
        step(step.init(params()), batch)
