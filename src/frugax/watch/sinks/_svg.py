"""Grids, steps and episodes as SVG documents: no script, no fonts, light and dark."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._marks import (
    cell_size,
    document,
    label,
    outline,
    panel,
    shortened,
    width_of,
)
from ._palettes import Palette, check_palette
from ._picture import Picture, picture

_MARGIN = 14
_TITLE = 26  # height of a heading
_LINE = 20  # height of a line of text
# Cells beyond this many on a side could not be told apart on any screen.
_MOST_CELLS = 1024


def grid_svg(
    grid: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    title: str = "",
    palette: Palette = "arc",
    show_numbers: bool = False,
) -> str:
    """A grid as an SVG document.

    Args:
        grid: `(rows, columns)`. Whole numbers from 0 to 9 get a colour each, -1 is
            padding; other numbers lie on a ramp of colours. `uint8` with three
            channels last is a colour picture; other leading axes are lanes, of which
            four are shown. Beyond 1024 rows or columns, every nth is drawn.
        mask: which cells count, `(rows, columns)`; the others are crossed out.
        title: any text; it is escaped, and also what a screen reader says.
        palette: `"arc"`, `"colour_blind"` or `"high_contrast"`.
        show_numbers: write each value into its cell, where there is room.

    Raises:
        TypeError: `grid` does not hold real numbers, or is being traced.
        ValueError: it is empty, the mask has another shape, or there is no such
            palette.

    Example:
        >>> grid_svg([[1, 2], [3, 0]], title="<corner>")[:4]
        '<svg'
    """
    known = check_palette(palette)
    shown = picture(grid, mask).thinned(_MOST_CELLS)
    cell = cell_size(shown.rows, shown.columns, room=480)
    top = _MARGIN + (_TITLE if title else 0)
    said = shown.described()
    inner = max(
        shown.columns * cell, min(width_of(title, "title"), 480), width_of(said)
    )
    body = panel(shown, _MARGIN, top, cell, palette=known, numbers=show_numbers)
    bottom = top + shown.rows * cell
    body += label(_MARGIN, bottom + _LINE - 2, said)
    if title:
        heading = shortened(title, inner, "title")
        body += label(_MARGIN, _MARGIN + 13, heading, ink="ink", size="title")
    return document(
        round(inner + 2 * _MARGIN), bottom + _LINE + _MARGIN - 6, title, said, body
    )


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
    """One step as an SVG document: the grid before, the action, the grid after.

    Cells that the step changed are framed in the grid after it.

    Args:
        before: as `grid` of `grid_svg`.
        action: text, a number, an array or a mapping of these. An array of booleans
            with the grid's shape is a selection, framed in the grid before the step.
        after: as `before`.
        mask: which cells count, in both.
        title: any text.
        palette: as of `grid_svg`.
        show_numbers: write each value into its cell.

    Raises:
        TypeError: a grid does not hold real numbers, or is being traced.
        ValueError: a grid is empty, the mask has another shape, or there is no such
            palette.
    """
    known = check_palette(palette)
    first = picture(before, mask, name="before")
    fits = np.shape(np.asarray(after)) == np.shape(np.asarray(before))
    last = picture(after, mask if fits else None, name="after")
    selected, lines = _action(action, first)
    pair = [p.thinned(256) for p in (first, last)]
    cell = min(cell_size(p.rows, p.columns, room=320) for p in pair)
    top = _MARGIN + (_TITLE if title else 0) + _LINE
    middle = max(110.0, *(width_of(line) + 24 for line in lines)) if lines else 70.0
    high = max(p.rows for p in pair) * cell
    left_wide = max(pair[0].columns * cell, 70)
    right = _MARGIN + left_wide + middle
    body = ""
    for x, name, p in zip((_MARGIN, right), ("before", "after"), pair, strict=True):
        body += label(x, top - 7, name)
        body += panel(p, x, top, cell, palette=known, numbers=show_numbers)
    if selected is not None and pair[0] is first:
        body += outline(selected, _MARGIN, top, cell)
    said = "another shape"
    if first.known.shape == last.known.shape:
        changed = _changed(first, last)
        said = f"{int(changed.sum())} cells changed"
        if pair[1] is last:
            body += outline(changed, right, top, cell)
    at = _MARGIN + left_wide + middle / 2
    body += _arrow(at, top + high / 2)
    for i, line in enumerate(lines):
        body += label(at, top + high / 2 + 28 + i * 18, line, ink="ink", middle=True)
    bottom = top + max(high, high / 2 + 28 + len(lines) * 18)
    body += label(_MARGIN, bottom + _LINE, said)
    wide = right + max(pair[1].columns * cell, 70) + _MARGIN
    if title:
        heading = shortened(title, wide - 2 * _MARGIN, "title")
        body += label(_MARGIN, _MARGIN + 13, heading, ink="ink", size="title")
    described = ". ".join([*lines, said])
    return document(
        round(wide), round(bottom + _LINE + _MARGIN), title, described, body
    )


def episode_svg(
    grids: Sequence[npt.ArrayLike],
    *,
    masks: Sequence[npt.ArrayLike | None] | None = None,
    steps: Sequence[int] | None = None,
    title: str = "",
    summary: Mapping[str, Any] | None = None,
    palette: Palette = "arc",
    columns: int = 5,
    most: int = 20,
) -> str:
    """An episode as a sheet of its grids, in order.

    Args:
        grids: each as `grid` of `grid_svg`.
        masks: one for each grid, if any.
        steps: what each grid is called; 0, 1, 2... if not given.
        title: any text.
        summary: named values, written below the title.
        palette: as of `grid_svg`.
        columns: how many grids stand side by side; >= 1.
        most: of more grids than this, the first, the last and some between are drawn.

    Raises:
        TypeError: a grid does not hold real numbers, or is being traced.
        ValueError: there is no grid, one is empty, `masks` or `steps` has another
            length, `columns` or `most` is below 1, or there is no such palette.
    """
    known = check_palette(palette)
    for name, given in (("masks", masks), ("steps", steps)):
        if given is not None and len(given) != len(grids):
            raise ValueError(f"{name} must have {len(grids)} items, got {len(given)}.")
    for name, number in (("grids", len(grids)), ("columns", columns), ("most", most)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")
    chosen = np.linspace(0, len(grids) - 1, min(most, len(grids))).round().astype(int)
    frames = [
        (
            int(steps[i]) if steps is not None else i,
            picture(grids[i], None if masks is None else masks[i], name=f"grids[{i}]"),
        )
        for i in chosen.tolist()
    ]
    thin = [(step, shown.thinned(128)) for step, shown in frames]
    cell = min(cell_size(p.rows, p.columns, room=150) for _, p in thin)
    wide = max(max(p.columns for _, p in thin) * cell, 60) + 16
    high = max(p.rows for _, p in thin) * cell + _LINE + 10
    columns = min(columns, len(thin))
    lines = [f"{len(grids)} grids"]
    lines += [f"{len(thin)} shown"] if len(thin) < len(grids) else []
    lines += [f"{k} {_value(v)}" for k, v in (summary or {}).items()]
    said = ", ".join(lines)
    full = max(columns * wide - 16, min(width_of(title, "title"), 480), 200)
    top = _MARGIN + (_TITLE if title else 0) + _LINE + 4
    body = label(_MARGIN, top - 10, shortened(said, full))
    if title:
        heading = shortened(title, full, "title")
        body += label(_MARGIN, _MARGIN + 13, heading, ink="ink", size="title")
    for n, (step, shown) in enumerate(thin):
        x, y = _MARGIN + n % columns * wide, top + n // columns * high
        body += panel(shown, x, y, cell, palette=known, numbers=False)
        body += label(x, y + shown.rows * cell + 15, f"step {step}")
    rows = -(-len(thin) // columns)
    size = round(full + 2 * _MARGIN), top + rows * high + _MARGIN - 10
    return document(*size, title, said, body)


def _changed(first: Picture, last: Picture) -> np.ndarray:
    if first.kind == last.kind == "ramp":  # each on its own scale
        scale = [p.low + p.codes / 254.0 * (p.high - p.low) for p in (first, last)]
        differs = ~np.isclose(*scale, rtol=0, atol=1e-2 * (last.high - last.low or 1.0))
    else:
        differs = first.codes != last.codes
    if differs.ndim == 3:
        differs = differs.any(axis=-1)
    return (differs & first.known & last.known) | (first.known != last.known)


def _arrow(x: float, y: float) -> str:
    return (
        f'<path class="fx-mark" fill="none" stroke="#1b1f24" stroke-width="2" '
        f'stroke-linecap="round" stroke-linejoin="round" '
        f'd="M{x - 18:g} {y:g}h36m-8 -7l8 7l-8 7"/>'
    )


def _action(action: Any, first: Picture) -> tuple[np.ndarray | None, list[str]]:
    """The cells that an action selects, if any, and the lines that say what it is."""
    named = action.items() if isinstance(action, Mapping) else (("", action),)
    selected: np.ndarray | None = None
    lines: list[str] = []
    for name, value in named:
        if value is None:
            continue
        array = None if isinstance(value, str) else np.asarray(value)
        if (
            array is not None
            and array.dtype == bool
            and array.shape == first.known.shape
        ):
            selected = array
            lines.append(f"{name} {int(array.sum())} cells".strip())
        else:
            lines.append(shortened(f"{name} {_value(value)}".strip(), 220))
    return selected, lines[:6]


def _value(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.ndim == 0:
        one = array.item()
        return f"{one:.4g}" if isinstance(one, float) else str(one)
    if array.size <= 8 and array.dtype.kind in "biuf":
        return " ".join(f"{v:.4g}" for v in array.ravel().tolist())
    return f"{array.dtype} {array.shape}"
