"""Plans for devices that are not here, and where they are refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from frugax import MemoryBudget, measure, remat
from frugax.targets import Target, installed_compilers
from refusals import refuses

from .nets import f32


def loss(ws, x):
    for up, down in ws:
        x = x + jax.nn.gelu(x @ up) @ down
    return jnp.mean(x**2)


ARGS = ([(f32(64, 256), f32(256, 64))] * 3, f32(1024, 64))


@pytest.fixture
def gpu_compiler():
    compiler = next(c for c in installed_compilers() if c.platform == "gpu")
    if compiler.problem:
        pytest.skip(compiler.problem)


@functools.cache
def plan_half(*, remat3):
    """The bytes of the loss without a plan, and a plan for half; once per setting."""
    assert jax.config.values["jax_remat3"] == remat3
    grad = jax.jit(jax.value_and_grad(loss))
    whole = measure.program(Target("h100").compile(grad, *ARGS))
    limit = MemoryBudget(limit_bytes=whole.temp_bytes // 2)
    how = {"target": "h100", "cache": False, "divide_batch": False}
    return whole.temp_bytes, remat.plan(loss, limit, ARGS, **how)


@pytest.mark.parametrize("remat3", [False], indirect=True)
def test_a_plan_for_a_gpu_uses_its_gates_and_is_refused_on_a_cpu(gpu_compiler, remat3):
    _, plan = plan_half(remat3=remat3)
    assert (plan.target, plan.platform) == ("h100", "gpu")
    assert {s.gate for s in plan.segments} == {None, "barrier"}
    assert "autotuning" in plan.caveat
    assert remat.RematPlan.from_json(plan.to_json()) == plan
    planned = remat.apply(loss, plan)
    # Shapes live nowhere: the report compiles for the plan's own target.
    (spend,) = planned.report(*ARGS).spends
    assert spend.measured == plan.predicted
    assert "h100" in spend.source
    arrays = jax.tree.map(lambda s: jnp.full(s.shape, 0.01, s.dtype), ARGS)
    with refuses(ValueError, "(gpu)"):
        planned(*arrays)
    with refuses(ValueError, "h100"):
        jax.jit(lambda *args: planned(*args))(*arrays)
    value, grads = remat.apply(loss, plan, anywhere=True)(*arrays)
    expected, expected_grads = jax.jit(jax.value_and_grad(loss))(*arrays)
    assert jnp.allclose(value, expected)
    jax.tree.map(
        lambda a, b: jnp.allclose(a, b) or pytest.fail("gradients differ"),
        grads,
        expected_grads,
    )


@pytest.fixture
def remat3(request):
    """JAX's newer `jax.checkpoint`, which places its barriers elsewhere, on or off."""
    before = jax.config.values["jax_remat3"]
    jax.config.update("jax_remat3", request.param)
    yield request.param
    jax.config.update("jax_remat3", before)


@pytest.mark.parametrize(
    "remat3", [False, pytest.param(True, marks=pytest.mark.thorough)], indirect=True
)
@pytest.mark.parametrize("gate", ["barrier", "cond", "select"])
def test_each_gate_keeps_a_gpu_from_undoing_recomputation(gpu_compiler, gate, remat3):
    """A canary: a compiler that learns to look through a gate is found here first."""
    whole_bytes, plan = plan_half(remat3=remat3)
    assert any(s.gate for s in plan.segments)
    segments = [
        dataclasses.replace(s, gate=gate) if s.gate else s for s in plan.segments
    ]
    gated = dataclasses.replace(plan, segments=tuple(segments))
    planned = jax.jit(remat.apply(loss, gated))
    held = measure.program(Target("h100").compile(planned, *ARGS)).temp_bytes
    # Ungated, XLA finds the common subexpressions and holds all of them.
    assert held <= 0.6 * whole_bytes


@pytest.mark.thorough
@pytest.mark.parametrize("remat3", [False, True], indirect=True)
def test_a_checkpointed_block_is_planned_for_a_gpu(gpu_compiler, remat3):
    def blocks(ws, x):
        for up, down in ws:
            block = lambda x, up, down: x + jax.nn.gelu(x @ up) @ down
            x = jax.checkpoint(block)(x, up, down)
        return jnp.mean(x**2)

    target = Target("h100")
    plain = target.compile(jax.jit(jax.value_and_grad(blocks)), *ARGS)
    limit = MemoryBudget(limit_bytes=measure.program(plain).temp_bytes)
    plan = remat.plan(blocks, limit, ARGS, target=target, cache=False)
    again = target.compile(jax.jit(remat.apply(blocks, plan)), *ARGS, cache=False)
    assert measure.program(again).temp_bytes == plan.predicted


def test_plans_for_a_cpu_and_a_gpu_never_share_a_cache_entry(gpu_compiler, tmp_path):
    limit = MemoryBudget("1GiB")
    here = remat.plan(loss, limit, ARGS, cache=tmp_path)
    there = remat.plan(loss, limit, ARGS, target="h100", cache=tmp_path)
    assert (here.platform, there.platform) == ("cpu", "gpu")
    assert len(list(tmp_path.glob("*.json"))) == 2
