"""A training step names the cause of each program after its first."""

import jax
import jax.numpy as jnp
import optax
import pytest

from frugax import train

X = jnp.ones((4, 2))


def step_change(first, second, *, context=None):
    step = train.make_train_step(
        lambda p, b: ((b["x"] @ p["w"]) ** 2).mean(), optax.sgd(0.1), donate=False
    )
    state = step.init({"w": jnp.ones(2)})
    step.prepare(state, first)
    if context is None:
        step.prepare(state, second)
    else:
        with context:
            step.prepare(state, second)
    return step.info.causes


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": jnp.ones((5, 2))}, "batch['x']: float32[4,2] -> float32[5,2]"),
        ({"x": X.astype(jnp.bfloat16)}, "batch['x']: float32[4,2] -> bfloat16[4,2]"),
        ({"x": X, "y": 1.0}, "batch['y']: absent -> float32[] weak"),
        (
            {"x": jax.device_put(X, jax.devices()[1])},
            "batch['x']: float32[4,2] -> float32[4,2] on cpu:1",
        ),
    ],
)
def test_a_step_names_the_same_causes(second, message):
    with jax.numpy_dtype_promotion("standard"):
        assert step_change({"x": X}, second) == (message,)


def test_a_step_names_settings_and_needs_no_program_for_committed_arrays():
    told = step_change(
        {"x": X}, {"x": X}, context=jax.default_matmul_precision("float32")
    )
    assert told == ("matmul precision: None -> float32",)
    put = {"x": jax.device_put(X, jax.devices()[0])}
    assert step_change({"x": X}, put) == ()


def test_more_containers_without_leaves_are_named():
    (told,) = step_change({"x": X, "e": ()}, {"x": X, "e": ((),)})
    assert told.startswith("structure: ")
