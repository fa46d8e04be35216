"""Draw 2-D arrays as SVG: one grid, before and after a step, an episode, or a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool

from frugax.report import Markup

from ._palettes import Palette, check_palette
from ._picture import Picture, make_picture
from ._svg_elements import (
    arrow,
    cell_size,
    document,
    label,
    outline,
    panel,
    shorten,
    text_width,
    title_label,
)

# Pixels of the drawing. Titles and captions have 15 and 13 pixels, hence these line
# heights.
_MARGIN = 14
_TITLE_HEIGHT = 26
_LINE_HEIGHT = 20
_TITLE_WIDTH = 480  # a longer title is shortened rather than widening the drawing
# No screen could show more cells on a side.
_MAX_CELLS = 1024
_SHEET_MARGIN = _SHEET_GAP = 10
_SHEET_WIDTH = 780  # about
# Cells of a sheet are small: it is for comparing, not for reading numbers.
_MAX_SHEET_CELL, _MAX_SHEET_CELLS = 14, 64


def grid_svg(
    grid: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    title: str = "",
    palette: Palette = "arc",
    show_numbers: bool = False,
) -> str:
    """Draw a grid as an SVG document.

    Args:
        grid: `(rows, columns)`. Whole numbers from 0 to 9 get a colour each, -1 is
            padding; other numbers lie on a ramp of colours. `uint8` with three
            channels last is a colour image; other leading axes are lanes, of which
            four are shown. Beyond 1024 rows or columns, every n-th is drawn.
        mask: the known cells, `(rows, columns)`; the others are crossed out.
        title: any text; it is escaped, and also read by screen readers.
        palette: `"arc"`, `"colour_blind"` or `"high_contrast"`.
        show_numbers: write each value into its cell, where there is room.

    Raises:
        TypeError: `grid` does not hold real numbers, or is being traced.
        ValueError: `grid` is empty, the mask has another shape, or the palette is
            unknown.

    Example:
        >>> grid_svg([[1, 2], [3, 0]], title="<corner>")[:4]
        '<svg'
    """
    return picture_svg(
        make_picture(grid, mask), title, palette=palette, show_numbers=show_numbers
    )


def picture_svg(
    picture: Picture, title: str, *, palette: Palette, show_numbers: bool = False
) -> str:
    """Draw a picture as an SVG document; see `grid_svg`."""
    palette = check_palette(palette)
    picture = picture.shrink(_MAX_CELLS)
    cell = cell_size(picture.rows, picture.columns, room=480)
    top = _top(title)
    caption = picture.describe()
    inner = max(picture.columns * cell, _title_width(title), text_width(caption))
    bottom = top + picture.rows * cell
    body = [
        panel(picture, _MARGIN, top, cell, palette=palette, numbers=show_numbers),
        label(_MARGIN, bottom + _LINE_HEIGHT - 2, caption),
        *title_label(_MARGIN, _MARGIN + 13, title, inner),
    ]
    height = bottom + _LINE_HEIGHT + _MARGIN - 6
    return document(inner + 2 * _MARGIN, height, title, caption, body)


def step_svg(
    before: npt.ArrayLike,
    action: Any,
    after: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    title: str = "",
    palette: Palette = "arc",
    show_numbers: bool = False,
) -> str:
    """Draw one step as an SVG document: the grid before, the action, the grid after.

    Cells that the step changed are framed in the grid after it.

    Args:
        before: as `grid` of `grid_svg`.
        action: text, a number, an array or a mapping of these. An array of booleans
            with the shape of the grid is a selection, framed in the grid before.
        after: as `before`.
        mask: the known cells of both grids.
        title: any text.
        palette: as in `grid_svg`.
        show_numbers: write each value into its cell.

    Raises:
        TypeError: a grid does not hold real numbers, or is being traced.
        ValueError: a grid is empty, the mask has another shape, or the palette is
            unknown.
    """
    palette = check_palette(palette)
    first = make_picture(before, mask, name="before")
    # A step may resize the grid, and the mask belongs to the old shape.
    if np.shape(np.asarray(after)) != np.shape(np.asarray(before)):
        mask = None
    last = make_picture(after, mask, name="after")
    selected, lines = _describe_action(action, first)
    pair = [p.shrink(256) for p in (first, last)]
    cell = min(cell_size(p.rows, p.columns, room=320) for p in pair)
    top = _top(title) + _LINE_HEIGHT
    # The action stands between the grids, in a gap as wide as its longest line.
    gap = max([70.0, *(max(text_width(line) + 24, 110.0) for line in lines)])
    height = max(p.rows for p in pair) * cell
    left_width = max(pair[0].columns * cell, 70)
    right = _MARGIN + left_width + gap
    body: list[Markup] = []
    for x, name, p in zip((_MARGIN, right), ("before", "after"), pair, strict=True):
        body.append(label(x, top - 7, name))
        body.append(panel(p, x, top, cell, palette=palette, numbers=show_numbers))
    # Masks of cells do not fit a picture of which every n-th cell is drawn.
    if selected is not None and pair[0] is first:
        body += outline(selected, _MARGIN, top, cell)
    caption = "another shape"
    if first.known.shape == last.known.shape:
        changed = _compare_cells(first, last)
        caption = f"{int(changed.sum())} cells changed"
        if pair[1] is last:
            body += outline(changed, right, top, cell)
    middle = _MARGIN + left_width + gap / 2
    text_top = top + height / 2 + 28
    body.append(arrow(middle, top + height / 2))
    body += [
        label(middle, text_top + i * 18, line, ink="ink", is_centred=True)
        for i, line in enumerate(lines)
    ]
    bottom = max(top + height, text_top + len(lines) * 18)
    width = right + max(pair[1].columns * cell, 70) + _MARGIN
    body.append(label(_MARGIN, bottom + _LINE_HEIGHT, caption))
    body += title_label(_MARGIN, _MARGIN + 13, title, width - 2 * _MARGIN)
    description = ". ".join([*lines, caption])
    height = bottom + _LINE_HEIGHT + _MARGIN
    return document(width, height, title, description, body)


def episode_svg(
    grids: Sequence[npt.ArrayLike],
    *,
    masks: Sequence[npt.ArrayLike | None] | None = None,
    steps: Sequence[int] | None = None,
    title: str = "",
    summary: Mapping[str, Any] | None = None,
    palette: Palette = "arc",
    columns: int = 5,
    max_grids: int = 20,
) -> str:
    """Draw an episode as a sheet of its grids, in order.

    Args:
        grids: each as `grid` of `grid_svg`.
        masks: the known cells of each grid.
        steps: the step of each grid; by default 0, 1, 2, ...
        title: any text.
        summary: named values, written below the title.
        palette: as in `grid_svg`.
        columns: how many grids stand side by side; >= 1.
        max_grids: of more grids, the first, the last and some between are drawn.

    Raises:
        TypeError: a grid does not hold real numbers, or is being traced.
        ValueError: `grids` or one of them is empty, `masks` or `steps` has another
            length, `columns` or `max_grids` is below 1, or the palette is unknown.
    """
    palette = check_palette(palette)
    for name, values in (("masks", masks), ("steps", steps)):
        if values is not None and len(values) != len(grids):
            raise ValueError(f"{name} must have {len(grids)} items, got {len(values)}.")
    counts = {"grids": len(grids), "columns": columns, "max_grids": max_grids}
    for name, number in counts.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")
    shown = min(max_grids, len(grids))
    # Evenly spread, with the first and the last grid.
    indices = np.linspace(0, len(grids) - 1, shown).round().astype(int).tolist()
    if masks is None:
        masks = [None] * len(grids)
    if steps is None:
        steps = range(len(grids))
    pictures = [
        make_picture(grids[i], masks[i], name=f"grids[{i}]").shrink(128)
        for i in indices
    ]
    cell = min(cell_size(p.rows, p.columns, room=150) for p in pictures)
    width = max(max(p.columns for p in pictures) * cell, 60) + 16
    height = max(p.rows for p in pictures) * cell + _LINE_HEIGHT + 10
    columns = min(columns, shown)
    facts = [f"{len(grids)} grids"]
    if shown < len(grids):
        facts.append(f"{shown} shown")
    facts += [f"{k} {_format_value(v)}" for k, v in (summary or {}).items()]
    caption = ", ".join(facts)
    inner = max(columns * width - 16, _title_width(title), 200)
    top = _top(title) + _LINE_HEIGHT + 4
    body = [label(_MARGIN, top - 10, shorten(caption, inner))]
    body += title_label(_MARGIN, _MARGIN + 13, title, inner)
    for n, (i, picture) in enumerate(zip(indices, pictures, strict=True)):
        x, y = _MARGIN + n % columns * width, top + n // columns * height
        body.append(panel(picture, x, y, cell, palette=palette))
        body.append(label(x, y + picture.rows * cell + 15, f"step {int(steps[i])}"))
    rows = -(-shown // columns)
    total = top + rows * height + _MARGIN - 10
    return document(inner + 2 * _MARGIN, total, title, caption, body)


def sheet_svg(
    grids: Sequence[Sequence[npt.ArrayLike]],
    *,
    row_names: Sequence[str] = (),
    column_names: Sequence[str] = (),
    title: str = "",
    palette: Palette = "arc",
) -> str:
    """Draw rows and columns of grids as one SVG document.

    Args:
        grids: rows of grids, each as `grid` of `grid_svg`. Padding at the lower and
            the right edge of a grid is not drawn.
        row_names: one name for each row, or none at all.
        column_names: one name for each column, or none at all.
        title: any text.
        palette: as in `grid_svg`.

    Raises:
        TypeError: a grid does not hold real numbers, or is being traced.
        ValueError: `grids` or one of them is empty, the names do not match the rows or
            columns, or the palette is unknown.

    Example:
        >>> svg = sheet_svg([[[[1]], [[2]]]], column_names=["before", "after"])
        >>> svg.count("<text")
        2
    """
    palette = check_palette(palette)
    across = max(map(len, grids), default=0)
    if not across:
        raise ValueError("grids must hold at least one grid, got none.")
    for name, names, count in (
        ("row_names", row_names, len(grids)),
        ("column_names", column_names, across),
    ):
        if names and len(names) != count:
            raise ValueError(f"{name} must have {count} items, got {len(names)}.")
    pictures = [
        [_crop_padding(grid, f"grids[{r}][{c}]") for c, grid in enumerate(row)]
        for r, row in enumerate(grids)
    ]
    widths = [
        max(row[c].columns for row in pictures if c < len(row)) for c in range(across)
    ]
    heights = [max((p.rows for p in row), default=1) for row in pictures]
    left = float(_SHEET_MARGIN)
    if row_names:
        left += 8 + max(map(text_width, row_names))
    # One cell size for the whole sheet, so that grids can be compared.
    free = _SHEET_WIDTH - left - _SHEET_MARGIN - _SHEET_GAP * (across - 1)
    cell = int(max(2, min(_MAX_SHEET_CELL, free // sum(widths))))
    top = _SHEET_MARGIN + _LINE_HEIGHT * (bool(title) + bool(column_names))
    xs = left + np.cumsum([0, *[w * cell + _SHEET_GAP for w in widths]])
    ys = top + np.cumsum([0, *[h * cell + _SHEET_GAP for h in heights]])
    body: list[Markup] = []
    if title:
        body.append(label(_SHEET_MARGIN, _SHEET_MARGIN + 11, title, ink="ink"))
    for x, width, name in zip(xs, widths, column_names, strict=False):
        text = shorten(name, width * cell + _SHEET_GAP)
        body.append(label(float(x), top - 7, text))
    for y, height, name in zip(ys, heights, row_names, strict=False):
        body.append(label(_SHEET_MARGIN, float(y) + height * cell / 2 + 5, name))
    for y, row in zip(ys, pictures, strict=False):
        for x, picture in zip(xs, row, strict=False):
            body.append(panel(picture, float(x), float(y), cell, palette=palette))
    end = _SHEET_MARGIN - _SHEET_GAP
    count = "1 row" if len(grids) == 1 else f"{len(grids)} rows"
    most = "up to " if len({*map(len, grids)}) > 1 else ""
    description = f"{count} of {most}{across} pictures"
    for names in (column_names, row_names):
        if names:
            description += f"; {', '.join(names)}"
    size = float(xs[-1]) + end, float(ys[-1]) + end
    return document(*size, title, description, body)


def _top(title: str) -> int:
    return _MARGIN + (_TITLE_HEIGHT if title else 0)


def _title_width(title: str) -> float:
    return min(text_width(title, is_title=True), _TITLE_WIDTH)


def _crop_padding(grid: npt.ArrayLike, name: str) -> Picture:
    picture = make_picture(grid, name=name)
    if picture.known.any():
        rows = int(np.flatnonzero(picture.known.any(axis=1))[-1]) + 1
        columns = int(np.flatnonzero(picture.known.any(axis=0))[-1]) + 1
        # Made anew and not sliced: without the padding the range of a ramp may be
        # another.
        picture = make_picture(np.asarray(grid)[..., :rows, :columns], name=name)
    return picture.shrink(_MAX_SHEET_CELLS)


def _compare_cells(first: Picture, last: Picture) -> Bool[np.ndarray, "rows columns"]:
    if first.kind == last.kind == "ramp":
        # Each picture has a scale of its own, so equal codes may be different values.
        tolerance = 1e-2 * (last.high - last.low or 1.0)
        differs = ~np.isclose(
            first.levels_to_values(), last.levels_to_values(), rtol=0, atol=tolerance
        )
    else:
        differs = first.codes != last.codes
    if differs.ndim == 3:
        differs = differs.any(axis=-1)
    return (differs & first.known & last.known) | (first.known != last.known)


def _describe_action(
    action: Any, first: Picture
) -> tuple[np.ndarray | None, list[str]]:
    """Return the cells that an action selects, if any, and the lines that name it."""
    if not isinstance(action, Mapping):
        action = {"": action}
    selected: np.ndarray | None = None
    lines: list[str] = []
    for name, value in action.items():
        if value is None:
            continue
        array = np.asarray(value)
        if array.dtype == bool and array.shape == first.known.shape:
            selected = array
            lines.append(f"{name} {int(array.sum())} cells".strip())
        else:
            lines.append(shorten(f"{name} {_format_value(value)}".strip(), 220))
    # More lines would not fit between the grids.
    return selected, lines[:6]


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.ndim == 0:
        scalar = array.item()
        if isinstance(scalar, float):
            return f"{scalar:.4g}"
        return str(scalar)
    if array.size <= 8 and array.dtype.kind in "biuf":
        return " ".join(f"{v:.4g}" for v in array.ravel().tolist())
    return f"{array.dtype} {array.shape}"
