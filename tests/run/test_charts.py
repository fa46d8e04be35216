"""Charts draw what they are given: all of it, to scale, with its gaps."""

import json
import re
from html import unescape

import numpy as np
import pytest

from frugax.run._charts import bar_chart, line_chart


def points(svg):
    return json.loads(unescape(re.findall(r'data-points="([^"]*)"', svg)[0]))


def test_values_can_be_read_back_from_the_page():
    x, y = np.arange(5.0), np.array([1.0, 0.5, 0.25, 0.2, 0.1])
    got = points(line_chart({"loss": (x, y)}, x_label="step", y_label="loss"))
    assert [p[1:] for p in got["loss"]] == [[a, b] for a, b in zip(x, y, strict=True)]


def test_a_value_that_is_not_finite_is_a_gap():
    y = np.array([1.0, np.nan, 0.5, np.inf, 0.2])
    svg = line_chart({"loss": (np.arange(5.0), y)}, x_label="step", y_label="loss")
    path = re.findall(r'd="([^"]*)"', svg)[0]
    assert path.count("M") == 3
    assert "nan" not in svg
    assert "inf" not in svg
    assert points(svg)["loss"][1][2] is None


def test_a_long_curve_keeps_its_peaks():
    y = np.ones(100_000)
    y[54_321] = 9.0
    svg = line_chart({"a": (np.arange(100_000.0), y)}, x_label="s", y_label="a")
    shown = [p[2] for p in points(svg)["a"]]
    assert max(shown) == 9
    assert len(shown) <= 1300


def test_many_powers_of_ten_are_drawn_on_a_logarithmic_axis():
    y = 10.0 ** -np.arange(5.0)
    got = points(line_chart({"a": (np.arange(5.0), y)}, x_label="s", y_label="a"))
    svg = line_chart({"a": (np.arange(5.0), y)}, x_label="s", y_label="a")
    heights = [float(h) for h in re.findall(r"[ML][\d.]+ ([\d.]+)", svg)]
    assert np.diff(heights) == pytest.approx(np.diff(heights)[0], abs=0.2)
    assert len(got["a"]) == 5


@pytest.mark.parametrize("y", [[], [np.nan, np.nan]])
def test_nothing_to_draw_is_said(y):
    values = np.array(y, dtype=float)
    drawn = line_chart({"a": (np.arange(len(y)) * 1.0, values)}, x_label="", y_label="")
    assert drawn == '<p class="note">Nothing was recorded.</p>'


@pytest.mark.parametrize("y", [[3.0], [2.0, 2.0], [-1.0, 5.0]])
def test_short_and_flat_curves_are_drawn(y):
    drawn = line_chart(
        {"a": (np.arange(len(y)) * 1.0, np.array(y))}, x_label="", y_label=""
    )
    assert "nan" not in drawn


def test_bars_are_to_scale():
    svg = bar_chart([("a", 10.0, "s0"), ("b", 5.0, "s1")], unit="bytes", limit=20.0)
    wide, narrow = (float(w) for w in re.findall(r'rx="3" width="([\d.]+)"', svg))
    assert wide == pytest.approx(2 * narrow, abs=0.2)
    assert "limit 20 B" in svg


def test_names_cannot_break_the_page():
    svg = line_chart({"<b>": (np.ones(1), np.ones(1))}, x_label='"', y_label="<i>")
    assert "<b>" not in svg
    assert "<i>" not in svg
