"""`plan.explain()` lists the segments, their costs, and the reasons."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from frugax import MemoryBudget, remat

from .checks import plan_whole
from .nets import SHAPES, chain, f32


@pytest.fixture
def plan():
    """Written by hand, so that the text does not depend on the planner."""
    segment = lambda start, stop, gate, saved, again: remat.Segment(
        start=start, stop=stop, gate=gate, saved_bytes=saved, recomputed_flops=again
    )
    return remat.RematPlan(
        budget=MemoryBudget("800KiB"),
        predicted=600 * 1024,
        unplanned_bytes=2 * 2**20,
        extra_flops=12_345,
        unplanned_flops=100_000,
        body_plans=(),
        segments=(segment(0, 9, "cond", 0, 12_345), segment(9, 19, None, 512, 0)),
        fingerprint="0",
        argnums=0,
        has_aux=False,
        compiles=3,
    )


def test_the_verdict_holds_the_measured_bytes_against_the_limit(plan):
    assert plan.explain().splitlines()[:3] == [
        "fits 800 KiB of temp memory: 600 KiB measured, 75% of the limit",
        "without a plan: 2 MiB, 256% of the limit",
        "recomputed: 12,345 flops, 12.3% more; programs compiled to find this plan: 3",
    ]
    over = dataclasses.replace(plan, predicted=801 * 1024)
    assert over.explain().startswith("does not fit 800 KiB")


def test_each_segment_has_a_row_and_each_gate_a_reason(plan):
    said = plan.explain()
    for s in plan.segments:
        (row,) = [
            r for r in said.splitlines() if r.startswith(f"{s.start}-{s.stop - 1} ")
        ]
        assert f"{s.recomputed_flops:,}" in row
        assert ("recompute" in row) == (s.gate is not None)
    assert "\ncond: a branch that opens only once the gradient is known" in said
    assert "select:" not in said


def test_segments_inside_segments_are_indented_below_them(plan):
    inner = remat.Segment(
        start=0,
        stop=4,
        gate="select",
        saved_bytes=7,
        recomputed_flops=1,
        summary="sin x4",
    )
    outer, *rest = plan.segments
    outer = dataclasses.replace(outer, nested=(inner,), kept=(1, 2))
    said = dataclasses.replace(plan, segments=(outer, *rest)).explain()
    lines = said.splitlines()
    at = next(i for i, r in enumerate(lines) if ", 2 kept" in r)
    assert lines[at + 1].startswith("  0-3 ")
    assert "sin x4" in lines[at + 1]
    assert "\nselect: inputs wait" in said


def test_the_segment_where_the_peak_is_is_named(plan):
    first, second, *rest = plan.segments
    high = dataclasses.replace(second, peak_bytes=5 * 2**20)
    low = dataclasses.replace(first, peak_bytes=2**20)
    said = dataclasses.replace(plan, segments=(low, high, *rest)).explain()
    where = f"{second.start}-{second.stop - 1}"
    assert f"the peak is at the backward pass of {where}: 5 MiB by the model" in said


def test_a_plan_that_keeps_everything_says_so():
    plan = remat.plan(chain, MemoryBudget("1GiB"), example_args=SHAPES)
    assert "everything is kept" in plan.explain()


def test_scans_are_described():
    def iterations(w, xs):
        one = lambda c, x: (jnp.tanh(c @ w + x), None)
        return jnp.sum(jax.lax.scan(one, jnp.zeros(xs.shape[1:]), xs)[0])

    args = (f32(32, 32), f32(64, 16, 32))
    plan = plan_whole(iterations, MemoryBudget("100KiB"), example_args=args)
    assert plan.body_plans
    assert "scan at 1: " in plan.explain()
