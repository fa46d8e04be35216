"""Charts draw all of their data, to scale, with its gaps."""

import json
import re
from html import unescape

import numpy as np
import pytest

from frugax.report import line_chart as line_plot, ticks


def line_chart(lines, **options):
    return line_plot(lines, **options).figure()


def points(chart):
    return json.loads(unescape(re.findall(r'data-points="([^"]*)"', chart)[0]))


@pytest.mark.parametrize("is_wide", [False, True])
def test_values_can_be_read_back_from_the_page(is_wide):
    x, y = np.arange(5.0), np.array([1.0, 0.5, 0.25, 0.2, 0.1])
    chart = line_chart({"loss": (x, y)}, title="loss", is_wide=is_wide)
    assert points(chart)["loss"] == [[a, b] for a, b in zip(x, y, strict=True)]
    assert chart.count("<circle") == (5 if is_wide else 0)


def test_a_long_curve_keeps_its_peaks():
    y = np.ones(100_000)
    y[54_321] = 9.0
    chart = line_chart({"a": (np.arange(100_000.0), y)}, title="a", is_wide=True)
    shown = [p[1] for p in points(chart)["a"]]
    assert max(shown) == 9
    assert len(shown) <= 1300


@pytest.mark.parametrize(
    "y", [[1.0], [2.0, 2.0], [0.0, 0.0], [-1.0, 5.0], [1e-9, 1e9], [-1.7e308, 1.7e308]]
)  # fmt: skip
def test_any_finite_curve_is_drawn_inside_its_axes(y):
    values = np.array(y)
    chart = line_chart({"a": (np.arange(len(y)) * 1.0, values)}, title="a")
    drawn = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", chart)
    assert len(drawn) == len(y)
    assert all(0 <= float(a) <= 440 and 0 <= float(b) <= 154 for a, b in drawn)
    assert [p[1] for p in points(chart)["a"]] == [float(f"{v:.5g}") for v in y]


def test_labels_enclose_the_curve_and_the_axis_reaches_x_max():
    y = np.array([0.01, 0.33, -0.07])
    chart = line_chart({"a": (np.arange(3.0), y)}, title="a", x_max=12.0)
    labels = [float(t) for t in re.findall(r'text-anchor="end">(-?[\d.]+)<', chart)]
    assert (min(labels), max(labels)) == (-0.1, 0.4)
    assert json.loads(unescape(re.findall(r'data-axis="([^"]*)"', chart)[0]))[:2] == [
        0, 12,
    ]  # fmt: skip


def test_values_that_are_not_finite_leave_a_gap():
    y = np.array([1.0, np.nan, 0.5, np.inf, 0.2])
    chart = line_chart({"a": (np.arange(5.0), y)}, title="a")
    assert re.findall(r'd="([^"]*)"', chart)[0].count("M") == 3
    assert [p[1] for p in points(chart)["a"]] == [1.0, None, 0.5, None, 0.2]
    nothing = line_chart({"a": (np.arange(1.0), np.array([np.nan]))}, title="a")
    assert "No finite value" in nothing


def test_many_powers_of_ten_are_drawn_on_a_logarithmic_axis():
    y = 10.0 ** -np.arange(5.0)
    chart = line_chart({"a": (np.arange(5.0), y)}, title="a", is_wide=True)
    heights = [float(h) for h in re.findall(r"[ML][\d.]+ ([\d.]+)", chart)]
    assert np.diff(heights) == pytest.approx(np.diff(heights)[0], abs=0.2)
    assert len(points(chart)["a"]) == 5


def test_names_cannot_break_the_page():
    line = np.ones(1), np.ones(1)
    chart = line_chart({"<b>": line, '"': line}, title="<i>\x00")
    assert not re.search(r"<b>\w|<i>|\x00", chart)


@pytest.mark.parametrize(
    ("low", "high", "about", "whole", "wanted"),
    [
        (0, 1, 5, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 3, 5, True, [0, 1, 2, 3]),
        (-7e9, 7e9, 3, False, [-5e9, 0, 5e9]),
        (2, 2, 5, False, [2]),
    ],
)
def test_axes_are_labelled_by_round_numbers(low, high, about, whole, wanted):
    assert ticks(low, high, about=about, whole=whole) == pytest.approx(wanted)
