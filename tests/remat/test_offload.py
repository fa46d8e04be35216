"""Values of scans that a plan keeps in the host's memory."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from frugax import MemoryBudget, remat
from frugax.errors import RematUndoneError
from frugax.targets import installed_compilers
from refusals import refuses
from remat.checks import assert_same

from .nets import f32

ROUNDS, WIDTH, ROWS = 6, 64, 512


def loss(ws, x):
    def block(x, w):
        return x + jnp.tanh(x @ w[0]) @ w[1], None

    return jnp.mean(jax.lax.scan(block, x, ws)[0] ** 2)


ARGS = (f32(ROUNDS, 2, WIDTH, WIDTH), f32(ROWS, WIDTH))


@pytest.fixture(scope="module")
def plan():
    compiler = next(c for c in installed_compilers() if c.platform == "gpu")
    if compiler.problem:
        pytest.skip(compiler.problem)
    half = MemoryBudget.share(0.5)
    return remat.plan(loss, half, ARGS, target="h100", offload="first", cache=False)


def test_a_plan_states_the_bytes_in_the_hosts_memory(plan):
    # Of each iteration the carry and one product.
    assert plan.host_bytes == 2 * 4 * ROUNDS * ROWS * WIDTH
    assert plan.predicted <= plan.unplanned_bytes / 2
    assert plan.extra_share < 0.02
    assert "1.5 MiB to the host's memory, and back again" in plan.explain()
    assert remat.RematPlan.from_json(plan.to_json()) == plan
    (spend,) = remat.apply(loss, plan).report(*ARGS).spends
    assert spend.measured == plan.predicted


def test_gradients_with_offload_equal_jax(plan):
    keys = jax.random.split(jax.random.key(0))
    args = [jax.random.normal(k, s.shape) / 8 for k, s in zip(keys, ARGS, strict=True)]
    found = remat.apply(loss, plan, anywhere=True)(*args)
    assert_same(found, jax.jit(jax.value_and_grad(loss))(*args))


def test_a_compiler_that_ignores_offload_is_an_error(plan):
    # On a CPU all memory is the host's, and nothing is moved.
    here = dataclasses.replace(plan, target="cpu", platform="cpu")
    with refuses(RematUndoneError, "offload=False"):
        remat.apply(loss, here).report(*ARGS)


def test_the_hosts_memory_is_not_offered_on_a_cpu():
    with refuses(ValueError, "first", "offload") as e:
        remat.plan(loss, MemoryBudget("1MiB"), ARGS, offload="first", cache=False)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("lever", ["divide_batch", "offload"])
def test_a_misspelt_lever_is_refused(lever):
    shapes = (jax.ShapeDtypeStruct((4,), "float32"),)
    wrong: dict[str, Any] = {lever: "last"}
    with refuses(ValueError, lever):
        remat.plan(lambda x: x.sum(), MemoryBudget("1MiB"), shapes, **wrong)
