"""Plots draw all of their marks, to scale, in pages and in files."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from frugax.report import COLOURS, Axis, Bar, Plot, bar_chart, line_chart
from refusals import refuses

X = np.arange(5.0)
SVG = "{http://www.w3.org/2000/svg}"


def words(svg):
    return [part.text for part in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_legend_and_the_title_are_in_the_file():
    lines = {"<train>": (X, X), "test": (X, X + 1)}
    svg = line_chart(lines, title="loss & more").svg()
    assert words(svg)[:3] == ["loss & more", "<train>", "test"]
    root = ET.fromstring(svg)
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert root.findtext(f"{SVG}title") == "loss & more"
    assert root.findtext(f"{SVG}desc")
    assert "prefers-color-scheme" in svg
    # Only the script of a page reads the points and moves the cursor.
    assert "data-points" not in svg
    assert 'class="cursor"' not in svg


def test_a_single_line_has_no_legend():
    assert words(line_chart({"loss": (X, X)}, title="loss").svg()).count("loss") == 1


def test_a_long_legend_goes_on_in_another_row():
    plot = line_chart({"a" * 40: (X, X), "b" * 40: (X, -X)}, title="two names")
    root = ET.fromstring(plot.svg())
    keys = [e for e in root.iter(f"{SVG}text") if e.get("class") == "strong"]
    assert len({e.get("y") for e in keys}) == 2


def test_a_plot_without_marks_says_so():
    plot = line_chart({"loss": (X, X * np.nan)}, title="loss")
    assert "<svg" not in plot.figure()
    with refuses(ValueError, "'loss'"):
        plot.svg()


def test_marks_use_colours_of_the_theme():
    plot = Plot("a", x=Axis(low=0, high=4), y=Axis(low=0, high=4), width=99, height=99)
    plot.line(X, X, "s0", name="a")
    plot.steps(X, X[:-1], "s1")
    plot.dots(X, X, "s2", is_ring=True)
    plot.bar((0, 1), (0, 1), "s3", tip="a bar")
    used = set(re.findall(r'(?:fill|stroke):var\(--(\w+)\)"', plot.figure()))
    assert used == {"s0", "s1", "s2", "s3"}
    assert used <= set(COLOURS)


def test_steps_hold_their_value_from_edge_to_edge():
    x, y = Axis(low=0, high=2, about=0), Axis(low=0, high=10, about=0)
    plot = Plot("a", x=x, y=y, width=204, height=100, right=2)
    plot.steps(np.array([0.0, 1.0, 2.0]), np.array([10.0, 5.0]), "s0")
    area, edge = re.findall(r' d="([^"]*)"', plot.figure())
    assert edge == "M0 0L100 0L100 50L200 50"
    assert area == f"{edge}V100H0Z"


def test_of_texts_in_one_place_the_first_is_written_and_all_stay_inside():
    axis = Axis(low=0, high=1, about=0)
    plot = Plot("a", x=axis, y=axis, width=400, height=100)
    plot.dots([0.5], [0.5], "s0")
    plot.text(1, 0.5, "a label at the right end", is_inside=True)
    plot.text(1, 0.5, "another", is_inside=True)
    figure = plot.figure()
    assert "another" not in figure
    (x,) = re.findall(r'<text x="([\d.]+)"[^>]*>a label', figure)
    assert 0 < float(x) < 400 - 7 * len("a label at the right end")


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_value_without_a_logarithm_is_not_drawn(value):
    axis = Axis(low=1, high=1000, is_log=True)
    assert np.isnan(axis.share(value))
    assert axis.share(1000.0) == pytest.approx(1)
    assert axis.labelled() == pytest.approx([1, 10, 100, 1000])


def bar(label, value, limit=None):
    return Bar(label=label, parts=((label, value, "s0"),), limit=limit)


def test_bars_are_to_scale_with_one_label_for_a_common_limit():
    plot = bar_chart(
        [bar("a", 10.0, 20.0), bar("b", 5.0, 20.0)], title="t", unit="bytes"
    )
    figure = plot.figure()
    wide, narrow = map(float, re.findall(r'<rect [^>]*width="([\d.]+)"', figure))
    assert wide == pytest.approx(2 * narrow, abs=0.2)
    assert figure.count("limit 20 B") == 1
    assert "a: 10 B" in figure
    assert "b: 5 B" in words(plot.svg())
