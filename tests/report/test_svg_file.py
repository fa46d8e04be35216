"""A chart of a page becomes a separate picture, with its title and its legend."""

from xml.etree import ElementTree as ET

import numpy as np
import pytest

from frugax.report import bar_chart, line_chart, svg_file

X = np.arange(5.0)


def words(svg):
    return [
        part.text for part in ET.fromstring(svg).iter() if part.tag.endswith("text")
    ]


def test_the_key_and_the_title_are_in_the_picture():
    chart = line_chart({"<train>": (X, X), "test": (X, X + 1)}, title="loss & more")
    svg = svg_file(chart)
    assert words(svg)[:3] == ["loss & more", "<train>", "test"]
    root = ET.fromstring(svg)
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert "prefers-color-scheme" in svg
    # Only the script of a page reads the points and moves the cursor.
    assert "data-points" not in svg
    assert 'class="cursor"' not in svg


def test_a_single_line_has_no_legend():
    svg = svg_file(line_chart({"loss": (X, X)}, title="loss"))
    assert words(svg).count("loss") == 1


def test_bars_become_a_picture_too():
    svg = svg_file(bar_chart([("plain", 8.0, "s0")], unit="bytes", limit=4.0))
    assert "plain" in words(svg)


def test_a_figure_without_a_drawing_is_refused_with_its_text():
    empty = line_chart({"loss": (X, X * np.nan)}, title="loss")
    with pytest.raises(ValueError, match="No finite value was recorded"):
        svg_file(empty)


def test_a_key_keeps_its_size_where_a_page_enlarges_charts():
    svg = svg_file(line_chart({"recommended": (X, X), "low": (X, X)}, title="taste"))
    parts = [part for part in ET.fromstring(svg).iter() if part.tag.endswith("text")]
    keys = [part for part in parts if part.text in ("recommended", "low")]
    assert [key.get("style") for key in keys] == ["font-size:15px"] * 2
    # At 15 px a letter is 8 px wide; the next swatch is 16 px before its text.
    left, right = (float(key.get("x", "")) for key in keys)
    assert right - left >= 8 * len("recommended") + 16
