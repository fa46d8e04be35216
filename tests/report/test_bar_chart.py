"""Bars are drawn to scale."""

import re

import pytest

from frugax.report import bar_chart


def test_bars_are_to_scale():
    svg = bar_chart([("a", 10.0, "s0"), ("b", 5.0, "s1")], unit="bytes", limit=20.0)
    wide, narrow = (float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', svg))
    assert wide == pytest.approx(2 * narrow, abs=0.2)
    assert "limit 20 B" in svg


@pytest.mark.parametrize("limit", [9.0, 10.0, 10.1, 10.4, 11.0, 20.0])
def test_no_limit_runs_through_a_number(limit):
    svg = bar_chart([("a", 10.0, "s0")], unit="bytes", limit=limit)
    (value,) = re.findall(r'class="value" x="([\d.]+)" y="\d+">([^<]*)', svg)
    (line,) = map(float, re.findall(r'x1="([\d.]+)"', svg))
    start, glyph_px = float(value[0]), 7
    assert not start < line < start + glyph_px * len(value[1])
