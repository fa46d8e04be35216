"""The frontier: bytes against flops of the programs that a search compiled."""

import xml.etree.ElementTree as ET

import jax.numpy as jnp

from frugax import MemoryBudget, remat
from frugax.remat import Frontier, TriedPlan
from refusals import refuses

from .scan_cases import W


def frontier(*sizes):
    tried = [TriedPlan(100, 0, "nothing")]
    tried += [TriedPlan(size, flops, "a loop") for size, flops in sizes]
    return Frontier(
        tried=tuple(tried),
        budget=MemoryBudget(limit_bytes=60),
        predicted=50,
        unplanned_bytes=100,
        unplanned_flops=1000,
    )


def test_only_plans_that_no_other_beats_are_on_the_curve():
    found = frontier((80, 50), (70, 90), (60, 40), (50, 40), (30, 200))
    assert [(p.bytes, p.extra_flops) for p in found.points] == [
        (100, 0),
        (50, 40),
        (30, 200),
    ]
    lines = found.describe_neighbours()
    assert "smaller" in lines[0]
    assert "30 B" in lines[0]
    assert "20%" in lines[0]
    assert "larger" in lines[1]
    assert "100 B" in lines[1]
    assert str(found).count("beaten") == 3
    assert str(found).count("chosen") == 1


def test_the_picture_is_svg_and_marks_the_plan(tmp_path):
    found = frontier((50, 40), (30, 200))
    drawn = ET.parse(found.save(tmp_path / "curve.svg")).getroot()
    kinds = [e.get("class") for e in drawn.iter() if e.tag.endswith("circle")]
    assert kinds.count("dot") == 3
    assert kinds.count("ring") == 1
    assert "of plain" in found.save(tmp_path / "curve.txt").read_text()
    with refuses(ValueError, ".svg"):
        found.save(tmp_path / "curve.png")


def test_a_plan_lists_the_programs_compiled_for_it():
    def loss(w, x):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    args = W, jnp.ones((512, 32))
    plan = remat.plan(loss, MemoryBudget.share(0.7), args, cache=False)
    first, *rest = plan.tried
    assert (first.bytes, first.extra_flops) == (plan.unplanned_bytes, 0)
    assert (plan.predicted, plan.extra_flops) in {
        (t.bytes, t.extra_flops) for t in rest
    }
    assert "plan that was compiled" in plan.explain()
    again = remat.RematPlan.from_json(plan.to_json())
    assert again.frontier() == plan.frontier()
