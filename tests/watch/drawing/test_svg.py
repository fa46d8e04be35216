"""SVG drawings are valid XML and show their data: grids, steps, episodes, sheets."""

import base64
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from frugax.watch.drawing import (
    PALETTES,
    check_palette,
    episode_svg,
    grid_svg,
    sheet_svg,
    step_svg,
)
from refusals import refuses

SVG = "{http://www.w3.org/2000/svg}"
ONES = np.ones((3, 3), int)
EYE = np.eye(3, dtype=bool)
RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
CHANGED = np.where(np.arange(9).reshape(3, 3) < 2, 5, 0)
# Of the highest numbers before and after, so that both have the same colour.
RAMP = np.linspace(0.0, 1.0, 9).reshape(3, 3)
STEEPER = np.where(RAMP == 1.0, 8.0, RAMP)


def cells(svg):
    """The colour of every cell, read back from the paths: (row, column) to colour."""
    found, size = {}, None
    for path in ET.fromstring(svg).iter(f"{SVG}path"):
        fill = path.get("fill")
        for x, y, wide, high in re.findall(
            r"M(\d+) (\d+)h(\d+)v(\d+)H\d+z", path.get("d") or ""
        ):
            size = int(high)
            for i in range(int(wide) // size):
                found[int(y) // size, int(x) // size + i] = fill
    return found


def panels(svg):
    """The place of each grid, and the number of pixels of its coloured cells."""
    found = []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        if place := re.fullmatch(
            r"translate\(([\d.]+) ([\d.]+)\)", group.get("transform", "")
        ):
            area = sum(
                int(wide) * int(high)
                for path in group.findall(f"{SVG}g/{SVG}path")
                for wide, high in re.findall(r"h(\d+)v(\d+)", path.get("d", ""))
            )
            found.append((float(place[1]), float(place[2]), area))
    return found


@pytest.mark.parametrize("palette", sorted(PALETTES))
def test_every_known_cell_has_the_colour_of_its_value(palette):
    grid = RNG.integers(0, 10, (6, 9))
    want = {(r, c): PALETTES[palette][grid[r, c]] for r in range(6) for c in range(9)}
    assert cells(grid_svg(grid, palette=palette)) == want
    assert set(cells(grid_svg(ONES, mask=EYE))) == {(0, 0), (1, 1), (2, 2)}


@settings(max_examples=20, deadline=None)
@given(st.text() | st.just('<script>alert("&")</script>'))
def test_any_title_leaves_sound_xml(title):
    for svg in (
        grid_svg([[1]], title=title),
        step_svg([[1]], {title: title}, [[2]], title=title),
        episode_svg([[[1]]], title=title, summary={title: title}),
    ):
        root = ET.fromstring(svg)
        said = root.find(f"{SVG}title")
        assert said is not None
        assert said.text
        assert root.get("role") == "img"
        assert "<script" not in svg


def test_numbers_are_written_in_ink_that_is_seen():
    svg = grid_svg([[0, 4]], show_numbers=True)
    inks = {
        text.text: group.get("fill")
        for group in ET.fromstring(svg).iter(f"{SVG}g")
        for text in group.findall(f"{SVG}text")
    }
    assert inks == {"0": "#fff", "4": "#000"}


CROSSED, PNG = 'stroke="#8b939d"', "data:image/png"


@pytest.mark.parametrize(
    ("svg", "held", "lacked"),
    [
        (grid_svg(ONES), ["prefers-color-scheme:dark"], ["url(", "@import", "href="]),
        (grid_svg(ONES, mask=EYE), [CROSSED, "6 masked"], []),
        (grid_svg(ONES), [], [CROSSED]),
        (grid_svg([[1.5]], show_numbers=True), ["<text"], []),
        (grid_svg(np.zeros((1025, 3), int)), ["1 of 2 rows and columns of 1025"], []),
        (grid_svg(IMAGE), [PNG], []),
        (grid_svg(IMAGE, mask=np.arange(64) > np.zeros((64, 1))), [], [PNG]),
        (step_svg(0 * ONES, None, 0 * ONES), ["0 cells changed"], []),
        (step_svg(RAMP, None, STEEPER), ["1 cells changed"], []),
        (step_svg([[1, 2]], "crop", [[1]]), ["another shape"], []),
        (
            step_svg(0 * ONES, {"operation": "fill", "chosen": CHANGED > 0}, CHANGED),
            ["2 cells changed", "chosen 2 cells", "operation fill"],
            [],
        ),
    ],
)
def test_a_drawing_says_what_it_shows_and_what_it_leaves_out(svg, held, lacked):
    assert all(text in svg for text in held)
    assert not any(text in svg for text in lacked)


def test_changed_and_selected_cells_are_framed():
    svg = step_svg(0 * ONES, {"chosen": CHANGED > 0}, CHANGED)
    assert svg.count('stroke-width="3"') == 2


def test_large_grids_are_small_files():
    svg = grid_svg(RNG.normal(size=(200, 200)))
    (data,) = re.findall(r"data:image/png;base64,([^\"]+)", svg)
    assert base64.b64decode(data)[:4] == b"\x89PNG"
    assert len(svg) < 200_000
    assert len(grid_svg(np.zeros((1000, 1000), int))) < 60_000


def test_an_episode_shows_its_first_and_last_grid_and_their_number():
    grids = [np.full((2, 2), i % 10) for i in range(50)]
    svg = episode_svg(
        grids, steps=range(100, 150), max_grids=5, summary={"reward": 2.5}
    )
    assert re.findall(r">step (\d+)<", svg) == ["100", "112", "124", "137", "149"]
    assert "50 grids, 5 shown, reward 2.5" in svg


def test_grids_of_a_sheet_are_placed_in_rows_and_columns():
    one, two = np.ones((2, 3), int), np.full((4, 3), 2)
    places = panels(sheet_svg([[one, two], [two, one]]))
    (x0, y0, a0), (x1, y1, a1), (x2, y2, a2), (x3, y3, a3) = places
    assert x0 == x2 < x1 == x3
    assert y0 == y1 < y2 == y3
    assert a1 == a2 == 2 * a0 == 2 * a3
    assert len(panels(sheet_svg([[one, two], [one]]))) == 3
    sheets = [sheet_svg([[np.ones((12, 12), int)] * n]) for n in (1, 4, 8)]
    widths = [float(ET.fromstring(svg).get("width", "")) for svg in sheets]
    assert widths[0] < widths[1] < widths[2] <= 800  # of more grids the cells shrink


def test_padding_at_the_edge_of_a_sheet_is_not_drawn():
    grid = np.ones((4, 5), int)
    grid[3:], grid[:, 3:] = -1, -1
    assert panels(sheet_svg([[grid]])) == panels(sheet_svg([[ONES]]))
    assert sheet_svg([[-np.ones((2, 2), int)]])  # of nothing at all, something


def test_a_sheet_is_named_by_its_title_or_by_its_rows_and_columns():
    grids = [[np.ones((9, 9), int)] * 2] * 2
    names = {"row_names": ["a<b", "c"], "column_names": ["in", "out"]}
    root = ET.fromstring(sheet_svg(grids, **names, title="x & y"))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["x & y", "in", "out", "a<b", "c"]
    svg = sheet_svg([[ONES, ONES]], column_names=["before", "after"])
    assert ET.fromstring(svg).get("aria-label") == "1 row of 2 pictures; before, after"
    svg = sheet_svg([[ONES, ONES], [ONES]], row_names=["first", "second"])
    assert "<title>2 rows of up to 2 pictures; first, second</title>" in svg


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: episode_svg([]), "grids"),
        (lambda: episode_svg([ONES], steps=[1, 2]), "steps"),
        (lambda: episode_svg([ONES], max_grids=0), "max_grids"),
        (lambda: check_palette("pink"), "pink"),
        (lambda: sheet_svg([]), "grid"),
        (lambda: sheet_svg([[], []]), "grid"),
        (lambda: sheet_svg([[ONES]], row_names=["a", "b"]), "row_names"),
        (lambda: sheet_svg([[ONES]], column_names=["a"] * 3), "column_names"),
        (lambda: sheet_svg([[ONES, [[]]]]), "grids"),
    ],
)
def test_wrong_arguments_are_refused_with_a_remedy(call, named):
    with refuses(ValueError, named):
        call()
