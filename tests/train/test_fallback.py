"""Losses that cannot be traced: the right fallback, one warning, or a refusal."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import MemoryBudget, train
from frugax.errors import BudgetExceededError
from frugax.train import FallbackWarning
from refusals import refuses, warns

X = jnp.arange(6.0).reshape(3, 2) / 6
WEIGHTS = {"w": jnp.array([0.5, -0.25])}


def plain(params, batch):
    return ((batch["x"] @ params["w"] - 1.0) ** 2).mean()


def with_if(params, batch):
    loss = plain(params, batch)
    return loss if loss > 0 else -loss


def with_integer_index(params, batch):
    return plain(params, batch) * [1.0, 2.0][batch["k"]]


def with_item(params, batch):
    return plain(params, batch) * batch["x"].sum().item() / 2.5


def with_a_mask(params, batch):
    kept = batch["x"][batch["x"][:, 0] >= 0]
    return plain(params, {"x": kept})


def with_range(params, batch):
    return sum(plain(params, batch) for _ in range(batch["k"]))


def with_numpy_of_the_batch(params, batch):
    return plain(params, batch) * float(np.asarray(batch["x"]).max())


def with_a_size(params, batch):
    return plain(params, batch) + jnp.zeros((batch["k"],)).sum()


def with_as_many_as_there_are(params, batch):
    return plain(params, batch) * jnp.unique(batch["x"]).size


def with_if_in_a_loop(params, batch):
    def body(carry, x):
        error = (x @ params["w"] - 1.0) ** 2
        return (carry + error if error > 0 else carry), None

    return jax.lax.scan(body, 0.0, batch["x"])[0] / 3


def with_if_in_jit(params, batch):
    return jax.jit(with_if)(params, batch)


def with_float_of_the_loss(params, batch):
    return jnp.float32(float(plain(params, batch)))


def with_if_under_checkpoint(params, batch):
    return jax.checkpoint(with_if)(params, batch)


def with_if_under_vmap(params, batch):
    def one(x):
        error = (x @ params["w"] - 1.0) ** 2
        return error if error > 0 else -error

    return jax.vmap(one)(batch["x"]).mean()


EAGER = [
    (with_if, "TracerBoolConversionError", "eager"),
    (with_integer_index, "TracerIntegerConversionError", "eager"),
    (with_item, "ConcretizationTypeError", "eager"),
    (with_a_mask, "NonConcreteBooleanIndexError", "eager"),
    (with_range, "TracerIntegerConversionError", "eager"),
    (with_numpy_of_the_batch, "TracerArrayConversionError", "eager"),
    (with_a_size, "TypeError", "eager"),
    (with_as_many_as_there_are, "ConcretizationTypeError", "eager"),
    (with_if_in_a_loop, "TracerBoolConversionError", "eager without any jit"),
    (with_if_in_jit, "TracerBoolConversionError", "eager without any jit"),
]
REFUSED = [
    (with_float_of_the_loss, "ConcretizationTypeError", "no float"),
    (with_if_under_checkpoint, "TracerBoolConversionError", "jnp.where or lax.cond"),
    (with_if_under_vmap, "TracerBoolConversionError", "jnp.where or lax.cond"),
]


def batch():
    return {"x": X, "k": jnp.int32(1)}


def by_hand(loss, state):
    """The same update, every value computed without JAX's transformations but grad."""
    with jax.disable_jit():
        grads = jax.grad(loss)(state.params, batch())
    return jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)


@pytest.mark.parametrize(("loss", "error", "mode"), EAGER)
def test_a_step_that_runs_eagerly_warns_once(loss, error, mode):
    step = train.make_train_step(loss, optax.sgd(0.1))
    state = step.init(WEIGHTS)
    wanted = by_hand(loss, state)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        state, metrics = step(state, batch())
        np.testing.assert_allclose(state.params["w"], wanted["w"], rtol=1e-6)
        for _ in range(2):
            state, metrics = step(state, batch())
    about = [w for w in told if issubclass(w.category, FallbackWarning)]
    assert len(about) == 1
    message = str(about[0].message)
    assert error in message
    assert "test_fallback.py:" in message
    assert f"It runs {mode}." in message
    assert step.info.mode == mode
    assert np.isfinite(float(metrics["loss"]))
    assert int(state.step) == 3


@pytest.mark.parametrize(("loss", "error", "words"), REFUSED)
def test_a_step_that_cannot_run_at_all_is_refused_with_a_hint(loss, error, words):
    step = train.make_train_step(loss, optax.sgd(0.1))
    state = step.init(WEIGHTS)
    with refuses(TypeError, error, words):
        step(state, batch())
    np.testing.assert_array_equal(state.params["w"], WEIGHTS["w"])  # still there


@pytest.mark.parametrize("value", [True, 3, "mean"])
def test_python_values_in_the_batch_become_part_of_the_program(value):
    def loss(params, batch):
        if batch["how"] == "mean" or batch["how"] is True:
            return plain(params, batch)
        return plain(params, batch) * [1.0, 2.0, 3.0, 4.0][batch["how"]]

    step = train.make_train_step(loss, optax.sgd(0.1))
    state = step.init(WEIGHTS)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        state, _ = step(state, {"x": X, "how": value})
        state, _ = step(state, {"x": X, "how": value})
    assert step.compiles == 1
    assert step.info.mode == "compiled for the batch's Python values"
    assert len(told) == (0 if isinstance(value, str) else 1)
    other = {True: 2, 3: 2, "mean": 1}[value]
    state, _ = step(state, {"x": X, "how": other})
    assert step.compiles == 2
    assert step.info.causes == (f"batch['how']: {value!r} -> {other!r}",)


def test_an_error_in_user_code_has_no_fallback():
    def loss(params, batch):
        raise ValueError("my own mistake")

    step = train.make_train_step(loss, optax.sgd(0.1))
    with refuses(ValueError, "mistake"):
        step(step.init(WEIGHTS), batch())


def test_without_fallback_the_error_is_jaxs_own():
    step = train.make_train_step(with_if, optax.sgd(0.1), fallback=False)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        step(step.init(WEIGHTS), batch())


def test_a_fallback_does_not_give_up_a_memory_budget():
    budget = MemoryBudget("1MiB")
    step = train.make_train_step(with_if, optax.sgd(0.1), budget=budget)
    state = step.init(WEIGHTS)
    with refuses(TypeError, "test_fallback.py"):
        step(state, batch())
    np.testing.assert_array_equal(state.params["w"], WEIGHTS["w"])


def test_an_internal_xla_error_falls_back_to_safer_options(monkeypatch):
    class Fault(jax.errors.JaxRuntimeError):
        pass

    real = jax.stages.Lowered.compile
    tried = []

    def compile(self, *args, **kwargs):
        tried.append(args)
        if len(tried) == 1:
            raise Fault("INTERNAL: RET_CHECK failure instruction->IsDead()")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    step = train.make_train_step(plain, optax.sgd(0.1))
    with warns(FallbackWarning, "test_fallback.py"):
        step(step.init(WEIGHTS), {"x": X})
    assert step.info.mode == "compiled with safer options"
    assert step.compiles == 1


def test_running_out_of_memory_has_no_fallback(monkeypatch):
    class Full(jax.errors.JaxRuntimeError):
        pass

    def compile(self, *args, **kwargs):
        raise Full("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    step = train.make_train_step(plain, optax.sgd(0.1))
    with refuses(Full, "RESOURCE_EXHAUSTED"):
        step(step.init(WEIGHTS), {"x": X})


@pytest.mark.parametrize("on_excess", ["raise", "warn", "eager"])
def test_a_program_over_budget(on_excess):
    step = train.make_train_step(
        plain, optax.sgd(0.1), compile_budget=1, on_excess=on_excess
    )
    state, _ = step(step.init(WEIGHTS), {"x": X})
    wanted = jax.tree.map(
        lambda p, g: p - 0.1 * g,
        state.params,
        jax.grad(plain)(state.params, {"x": X[:2]}),
    )
    if on_excess == "raise":
        with refuses(BudgetExceededError, "'x'", "float32[3,2]"):
            step(state, {"x": X[:2]})
        return
    with warns(FallbackWarning, "'x'"):
        state, _ = step(state, {"x": X[:2]})
    np.testing.assert_allclose(state.params["w"], wanted["w"], rtol=1e-6)
    assert step.compiles == (2 if on_excess == "warn" else 1)
    assert step.info.mode == ("compiled" if on_excess == "warn" else "eager")
    # Shapes that are known still run their program.
    step(state, {"x": X})
    assert step.info.mode == "compiled"
