"""A sheet of small grids: the place and the size of each."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from frugax.watch.drawing import sheet_svg
from refusals import refuses


def panels(svg):
    """The place of each grid, and the number of pixels of its coloured cells."""
    root = ET.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    found = []
    for group in root.iter(f"{space}g"):
        if place := re.fullmatch(
            r"translate\(([\d.]+) ([\d.]+)\)", group.get("transform", "")
        ):
            area = sum(
                int(wide) * int(high)
                for path in group.findall(f"{space}g/{space}path")
                for wide, high in re.findall(r"h(\d+)v(\d+)", path.get("d", ""))
            )
            found.append((float(place[1]), float(place[2]), area))
    return found


def test_grids_are_placed_in_rows_and_columns():
    one, two = np.ones((2, 3), int), np.full((4, 3), 2)
    places = panels(sheet_svg([[one, two], [two, one]]))
    (x0, y0, a0), (x1, y1, a1), (x2, y2, a2), (x3, y3, a3) = places
    assert x0 == x2 < x1 == x3
    assert y0 == y1 < y2 == y3
    assert a1 == a2 == 2 * a0 == 2 * a3


def test_rows_may_be_of_different_lengths():
    assert len(panels(sheet_svg([[[[1]], [[2]]], [[[3]]]]))) == 3


def test_padding_at_the_edge_is_not_drawn():
    grid = np.ones((4, 5), int)
    grid[3:], grid[:, 3:] = -1, -1
    assert panels(sheet_svg([[grid]])) == panels(sheet_svg([[np.ones((3, 3), int)]]))
    assert sheet_svg([[-np.ones((2, 2), int)]])  # of nothing at all, something


def test_names_are_escaped_and_placed_beside_their_grids():
    grids = [[np.ones((9, 9), int)] * 2] * 2
    svg = sheet_svg(
        grids, row_names=["a<b", "c"], column_names=["in", "out"], title="x & y"
    )
    texts = [
        t.text for t in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert texts == ["x & y", "in", "out", "a<b", "c"]


def test_a_wide_sheet_has_small_cells():
    grid = np.ones((12, 12), int)
    widths = [
        float(ET.fromstring(sheet_svg([[grid] * n])).get("width", ""))
        for n in (1, 4, 8)
    ]
    assert widths[0] < widths[1] < widths[2] <= 800


def test_a_sheet_without_a_title_is_described_by_its_names():
    pair = [[[1]], [[2]]]
    svg = sheet_svg([pair], column_names=["before", "after"])
    assert ET.fromstring(svg).get("aria-label") == "1 row of 2 pictures; before, after"
    svg = sheet_svg([pair, pair[:1]], row_names=["first", "second"])
    assert "<title>2 rows of up to 2 pictures; first, second</title>" in svg


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"grids": []}, "grid"),
        ({"grids": [[], []]}, "grid"),
        ({"grids": [[[[1]]]], "row_names": ["a", "b"]}, "row_names"),
        ({"grids": [[[[1]]]], "column_names": ["a"] * 3}, "column_names"),
        ({"grids": [[[[1]], [[]]]]}, "grids"),
    ],
)
def test_a_grid_that_cannot_be_drawn_is_named(given, named):
    with refuses(ValueError, named):
        sheet_svg(given.pop("grids"), **given)
