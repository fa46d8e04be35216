"""Many small grids in a table, with headings, as one SVG document."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ._marks import document, label, panel, shortened, width_of
from ._palettes import Palette, check_palette
from ._picture import Picture, picture

_MARGIN, _GAP, _LINE = 10, 10, 20
# Cells are at most this wide: a sheet is for comparing, not for reading numbers.
_LARGEST_CELL, _MOST_CELLS = 14, 64


def sheet_svg(
    grids: Sequence[Sequence[npt.ArrayLike]],
    *,
    row_names: Sequence[str] = (),
    column_names: Sequence[str] = (),
    title: str = "",
    palette: Palette = "arc",
    room: int = 780,
) -> str:
    """Grids in rows and columns as one SVG document.

    Args:
        grids: rows of grids, each as `grid` of `grid_svg`. What is only padding at the
            lower and the right edge of a grid is not drawn.
        row_names: one for each row, or none.
        column_names: one for each column, or none.
        title: any text.
        palette: as of `grid_svg`.
        room: about how wide it may be, in pixels.

    Raises:
        TypeError: a grid does not hold real numbers, or is being traced.
        ValueError: there is no grid, one is empty, there are more or fewer names than
            rows or columns, or there is no such palette.

    Example:
        >>> svg = sheet_svg([[[[1]], [[2]]]], column_names=["before", "after"])
        >>> svg.count("<text")
        2
    """
    known = check_palette(palette)
    across = max(map(len, grids), default=0)
    if not across:
        raise ValueError("grids must hold at least one grid, got none.")
    named = (
        ("row_names", row_names, len(grids)),
        ("column_names", column_names, across),
    )
    for name, names, count in named:
        if names and len(names) != count:
            raise ValueError(f"{name} must have {count} items, got {len(names)}.")
    shown = [
        [_cropped(grid, f"grids[{r}][{c}]") for c, grid in enumerate(row)]
        for r, row in enumerate(grids)
    ]
    widths = [
        max(row[c].columns for row in shown if c < len(row)) for c in range(across)
    ]
    heights = [max((p.rows for p in row), default=1) for row in shown]
    left = _MARGIN + (8 + max(map(width_of, row_names)) if row_names else 0)
    free = room - left - _MARGIN - _GAP * (across - 1)
    cell = int(max(2, min(_LARGEST_CELL, free // sum(widths))))
    top = _MARGIN + _LINE * (bool(title) + bool(column_names))
    columns = left + np.cumsum([0, *[w * cell + _GAP for w in widths]])
    rows = top + np.cumsum([0, *[h * cell + _GAP for h in heights]])
    body = label(_MARGIN, _MARGIN + 11, title, ink="ink") if title else ""
    for c, name in enumerate(column_names):
        fitting = shortened(name, widths[c] * cell + _GAP)
        body += label(float(columns[c]), top - 7, fitting)
    for r, name in enumerate(row_names):
        body += label(_MARGIN, float(rows[r]) + heights[r] * cell / 2 + 5, name)
    for r, row in enumerate(shown):
        for c, one in enumerate(row):
            x, y = float(columns[c]), float(rows[r])
            body += panel(one, x, y, cell, palette=known, numbers=False)
    width, height = (
        float(columns[-1]) - _GAP + _MARGIN,
        float(rows[-1]) - _GAP + _MARGIN,
    )
    said = f"{len(grids)} rows of up to {across} grids"
    return document(width, height, title, said, body)


def _cropped(grid: npt.ArrayLike, name: str) -> Picture:
    """The picture of a grid without the padding at its lower and right edge."""
    whole = picture(grid, name=name)
    if not whole.known.any():
        return whole.thinned(_MOST_CELLS)
    rows = int(np.flatnonzero(whole.known.any(axis=1))[-1]) + 1
    columns = int(np.flatnonzero(whole.known.any(axis=0))[-1]) + 1
    return picture(np.asarray(grid)[..., :rows, :columns], name=name).thinned(
        _MOST_CELLS
    )
