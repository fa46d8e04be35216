"""SVG drawings are valid XML and show their data."""

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
    step_svg,
)
from refusals import refuses

SVG = "{http://www.w3.org/2000/svg}"


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


@pytest.mark.parametrize("palette", sorted(PALETTES))
def test_every_cell_has_the_colour_of_its_value(palette):
    grid = np.random.default_rng(0).integers(0, 10, (6, 9))
    want = {(r, c): PALETTES[palette][grid[r, c]] for r in range(6) for c in range(9)}
    assert cells(grid_svg(grid, palette=palette)) == want


def test_masked_cells_have_no_colour_and_are_crossed_out():
    grid, mask = np.ones((3, 3), int), np.eye(3, dtype=bool)
    svg = grid_svg(grid, mask=mask)
    assert set(cells(svg)) == {(0, 0), (1, 1), (2, 2)}
    assert 'stroke="#8b939d"' in svg
    assert "6 masked" in svg
    assert 'stroke="#8b939d"' not in grid_svg(grid)


@settings(max_examples=20, deadline=None)
@given(st.text())
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


def test_a_title_is_text_and_not_markup():
    svg = grid_svg([[1]], title='<script>alert("&")</script>')
    assert "<script" not in svg
    assert ET.fromstring(svg).get("aria-label") == '<script>alert("&")</script>'


def test_numbers_are_written_in_ink_that_is_seen():
    svg = grid_svg([[0, 4]], show_numbers=True)
    inks = {
        text.text: group.get("fill")
        for group in ET.fromstring(svg).iter(f"{SVG}g")
        for text in group.findall(f"{SVG}text")
    }
    assert inks == {"0": "#fff", "4": "#000"}
    assert "<text" in grid_svg([[1.5]], show_numbers=True)


def test_a_grid_with_many_cells_embeds_a_png():
    grid = np.random.default_rng(0).normal(size=(200, 200))
    svg = grid_svg(grid)
    data = re.findall(r"data:image/png;base64,([^\"]+)", svg)
    assert len(data) == 1
    assert base64.b64decode(data[0])[:4] == b"\x89PNG"
    assert len(svg) < 200_000


def test_a_colour_image_of_64_cells_a_side_is_a_png_unless_cells_are_unknown():
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert "data:image/png" in grid_svg(image)
    mask = np.ones((64, 64), bool)
    mask[0, 0] = False
    assert "data:image/png" not in grid_svg(image, mask=mask)


def test_a_uniform_grid_of_any_size_is_a_small_file():
    assert len(grid_svg(np.zeros((1000, 1000), int))) < 60_000


def test_a_drawing_beyond_1000_cells_a_side_states_the_omission():
    assert "1 of 2 rows and columns of 1025 × 3" in grid_svg(np.zeros((1025, 3), int))


def test_drawings_follow_the_theme_and_are_self_contained():
    svg = grid_svg([[1]])
    assert "prefers-color-scheme:dark" in svg
    assert not re.search(r"(?:href|src)=|url\(|@import", svg)


def test_a_step_frames_changed_and_selected_cells():
    before = np.zeros((3, 3), int)
    after = before.copy()
    after[1, :2] = 5
    chosen = after != before
    svg = step_svg(before, {"operation": "fill", "selection": chosen}, after)
    assert "2 cells changed" in svg
    assert "selection 2 cells" in svg
    assert "operation fill" in svg
    assert svg.count('stroke-width="3"') == 2
    assert "0 cells changed" in step_svg(before, None, before)


def test_a_step_may_change_the_shape():
    assert "another shape" in step_svg([[1, 2]], "crop", [[1]])


def test_a_step_of_measured_numbers_is_compared_on_one_scale():
    before = np.linspace(0.0, 1.0, 9).reshape(3, 3)
    after = before.copy()
    after[2, 2] = 8.0  # the highest before and after, so it has the same colour
    assert "1 cells changed" in step_svg(before, None, after)


def test_an_episode_shows_its_first_and_last_grid_and_their_number():
    grids = [np.full((2, 2), i % 10) for i in range(50)]
    svg = episode_svg(
        grids, steps=range(100, 150), max_grids=5, summary={"reward": 2.5}
    )
    assert re.findall(r">step (\d+)<", svg) == ["100", "112", "124", "137", "149"]
    assert "50 grids, 5 shown, reward 2.5" in svg


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: episode_svg([]), "grids"),
        (lambda: episode_svg([[[1]]], steps=[1, 2]), "steps"),
        (
            lambda: episode_svg([[[1]]], max_grids=0),
            "max_grids",
        ),
        (lambda: check_palette("pink"), "pink"),
    ],
)
def test_wrong_arguments_are_refused_with_a_remedy(call, named):
    with refuses(ValueError, named):
        call()
