"""Losses that JAX cannot trace are refused, with the place and the remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import MemoryBudget, train
from refusals import refuses

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


def with_numpy_that_is_written_in_python(params, batch):
    return np.linalg.norm(batch["x"] @ params["w"] - 1.0)


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


REFUSED = [
    (with_if, "TracerBoolConversionError", "jnp.where or lax.cond"),
    (with_integer_index, "TracerIntegerConversionError", "jnp.take"),
    (with_item, "ConcretizationTypeError", ".item()"),
    (with_a_mask, "NonConcreteBooleanIndexError", "jnp.where(mask, x, 0)"),
    (with_range, "TracerIntegerConversionError", "static="),
    (with_numpy_of_the_batch, "TracerArrayConversionError", "jax.numpy"),
    (
        with_numpy_that_is_written_in_python,
        "TracerArrayConversionError",
        "jax.numpy",
    ),
    (with_as_many_as_there_are, "ConcretizationTypeError", ".item()"),
    (with_if_in_a_loop, "TracerBoolConversionError", "jnp.where or lax.cond"),
    (with_if_in_jit, "TracerBoolConversionError", "jnp.where or lax.cond"),
    (with_float_of_the_loss, "ConcretizationTypeError", "no float"),
    (with_if_under_checkpoint, "TracerBoolConversionError", "jnp.where or lax.cond"),
    (with_if_under_vmap, "TracerBoolConversionError", "jnp.where or lax.cond"),
]


def batch():
    return {"x": X, "k": jnp.int32(1)}


@pytest.mark.parametrize("budget", [None, MemoryBudget("1MiB")])
@pytest.mark.parametrize(("loss", "error", "words"), REFUSED)
def test_a_loss_that_cannot_be_traced_is_refused(loss, error, words, budget):
    step = train.make_train_step(loss, optax.sgd(0.1), budget=budget)
    state = step.init(WEIGHTS)
    with refuses(TypeError, error, words, "test_trace_errors.py:"):
        step(state, batch())
    assert step.compiles == 0
    np.testing.assert_array_equal(state.params["w"], WEIGHTS["w"])  # still there


def test_an_error_in_user_code_is_raised_unchanged():
    def loss(params, batch):
        raise ValueError("my own mistake")

    step = train.make_train_step(loss, optax.sgd(0.1))
    with refuses(ValueError, "mistake"):
        step(step.init(WEIGHTS), batch())


def test_running_out_of_memory_is_raised_unchanged(monkeypatch):
    class Full(jax.errors.JaxRuntimeError):
        pass

    def compile(self, *args, **kwargs):
        raise Full("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    step = train.make_train_step(plain, optax.sgd(0.1))
    with refuses(Full, "RESOURCE_EXHAUSTED"):
        step(step.init(WEIGHTS), {"x": X})
