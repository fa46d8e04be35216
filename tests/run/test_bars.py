"""Bars are drawn to scale."""

import re

import pytest

from frugax.run._bars import bar_chart


def test_bars_are_to_scale():
    svg = bar_chart([("a", 10.0, "s0"), ("b", 5.0, "s1")], unit="bytes", limit=20.0)
    wide, narrow = (float(w) for w in re.findall(r'rx="3" width="([\d.]+)"', svg))
    assert wide == pytest.approx(2 * narrow, abs=0.2)
    assert "limit 20 B" in svg
