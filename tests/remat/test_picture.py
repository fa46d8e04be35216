"""A picture shows what XLA accounts for, readable in a browser and in a terminal."""

import dataclasses
import xml.etree.ElementTree as ET
from html import unescape

import jax
import numpy as np
import pytest

from frugax import MemoryBudget, measure, remat
from frugax.errors import OutputError
from frugax.remat._memory_charts import stretch
from refusals import refuses

from .checks import plan_whole
from .nets import SHAPES, chain

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn(chain_plan):
    return remat.draw_memory(chain, chain_plan, SHAPES)


def test_both_curves_end_where_xla_does(chain_plan, drawn):
    assert drawn.planned.measured == chain_plan.predicted
    assert drawn.unplanned.measured == chain_plan.unplanned_bytes
    for curve in (drawn.planned, drawn.unplanned):
        assert curve.counted_on == "compiled"
        # A cond's pointers and places rounded up: tests/measure/test_timeline.py.
        assert 0.98 * curve.measured <= curve.peak_bytes <= curve.measured


def test_total_memory_has_arguments_and_results_below_it(chain_plan, drawn):
    total = dataclasses.replace(chain_plan, budget=MemoryBudget("2MiB", kind="total"))
    here = remat.draw_memory(chain, total, SHAPES).planned
    always = 8 * 64 * 64 * 4 * 2 + 512 * 64 * 4 + 4  # weights twice, data, the loss
    assert here.peak_bytes - drawn.planned.peak_bytes == pytest.approx(always, abs=256)
    assert (
        here.measured - drawn.planned.measured == here.held[0] - drawn.planned.held[0]
    )


def test_a_whole_step_is_drawn_as_planned():
    def build(value_and_grad):
        def step(ws, x):
            value, grads = value_and_grad(chain)(ws, x)
            return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value

        return step

    whole = remat.EnclosingProgram(build=build, args=SHAPES, donate_argnums=(0,))
    planned = plan_whole(chain, MemoryBudget("1MiB"), example_args=SHAPES, within=whole)
    there = remat.draw_memory(chain, planned, SHAPES, within=whole)
    assert there.planned.measured == planned.predicted


def test_a_backend_without_a_timeline_gets_a_picture_of_the_trace(
    chain_plan, monkeypatch
):
    def refuse(compiled):
        raise ValueError("this backend does not say")

    monkeypatch.setattr(measure, "timeline", refuse)
    there = remat.draw_memory(chain, chain_plan, SHAPES)
    assert there.planned.counted_on == there.unplanned.counted_on == "traced"
    # Never scaled to fit the curve.
    assert there.planned.measured == chain_plan.predicted
    assert "only XLA's totals are measured" in unescape(there.svg())
    assert "only XLA's totals are measured" in there.text()


def test_the_svg_is_one_self_contained_file(drawn):
    root = ET.fromstring(drawn.svg())
    assert root.tag == f"{SVG}svg"
    said = [t.text or "" for t in root.iter(f"{SVG}text")]
    assert said[0] == root.findtext(f"{SVG}title") == "Temporary memory held over time"
    assert {"limit", "800 KiB", "0 B"} <= set(said)
    assert (
        sum(s.startswith(("planned: peak", "without a plan: peak")) for s in said) == 2
    )
    assert "http" not in drawn.svg().replace(SVG.strip("{}"), "")
    assert "prefers-color-scheme: dark" in drawn.svg()
    # Both areas lie inside the drawing, and the higher one reaches higher.
    tops = []
    for path in root.iter(f"{SVG}path"):
        if path.get("class") == "line":
            points = path.attrib["d"].removeprefix("M").split("L")
            xy = np.array([[float(v) for v in p.split(" ")] for p in points])
            assert (xy >= 0).all()
            assert (xy <= [900, 480]).all()
            tops.append(xy[:, 1].min())
    unplanned, planned = tops
    assert unplanned < planned


def test_names_are_escaped(drawn):
    odd = dataclasses.replace(drawn.planned, names=("<b>&",) * len(drawn.planned.names))
    ET.fromstring(dataclasses.replace(drawn, planned=odd).svg())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_text_keeps_to_its_width(drawn, width):
    lines = drawn.text(width=width).splitlines()
    plot = lines[1:-4]
    assert max(map(len, plot)) <= width
    assert any("█" in line for line in plot)
    assert any("░" in line for line in plot)
    assert any("800 KiB ┤" in line and "┄" in line for line in plot)


def test_too_little_room_is_refused(drawn):
    with refuses(ValueError, 39):
        drawn.text(width=39, height=4)


def test_stretching_never_hides_a_peak():
    values = [0] * 1000
    values[777] = 5
    assert stretch(values, 1000, 40).max() == 5
    assert list(stretch([1, 2], 4, 8)) == [1, 1, 2, 2, 0, 0, 0, 0]


def test_a_picture_is_saved_whole_or_refused(drawn, tmp_path):
    assert drawn.save(tmp_path / "a.svg").read_text() == drawn.svg()
    assert drawn.save(tmp_path / "a.txt").read_text() == drawn.text() + "\n"
    with refuses(ValueError, ".svg"):
        drawn.save(tmp_path / "a.png")
    with refuses(OutputError):
        drawn.save(tmp_path / "a.svg" / "b.svg")
