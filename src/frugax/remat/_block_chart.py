"""Two curves and a limit, drawn with the block characters of a terminal's font."""

from collections.abc import Sequence

import numpy as np

from frugax.budget import format_bytes

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def draw_blocks(
    *,
    planned: Sequence[int],
    unplanned: Sequence[int],
    limit: int,
    width: int,
    height: int,
) -> list[str]:
    """The lines of a plot, with both axes; from zero up.

    Args:
        planned: drawn solid.
        unplanned: drawn in grey where it holds more than that.
        limit: a dotted line.
        width: columns that a line may have.
        height: lines of the plot itself.

    Raises:
        ValueError: there is too little room to draw in.
    """
    if width < 40 or height < 4:
        raise ValueError(
            f"a picture needs at least 40 columns and 4 lines, got {width} and "
            f"{height}."
        )
    top = max(*planned, *unplanned, limit, 1)
    unit = top / height
    marks = {height - 1: format_bytes(top), _row(limit, unit): format_bytes(limit)}
    margin = max(map(len, marks.values()))
    columns = width - margin - 2
    length = max(len(planned), len(unplanned), 1)
    solid, grey = (
        stretch(values, length, columns) / unit for values in (planned, unplanned)
    )
    lines: list[str] = []
    for row in reversed(range(height)):
        cells = [_cell(p - row, u - row) for p, u in zip(solid, grey, strict=True)]
        if row == _row(limit, unit):
            cells = ["┄" if c in " ░" else c for c in cells]
        tick = "┤" if row in marks else "│"
        lines.append(f"{marks.get(row, ''):>{margin}} {tick}{''.join(cells)}".rstrip())
    lines.append(f"{'0':>{margin}} └" + "─" * columns)
    last = str(length - 1)
    lines.append(" " * (margin + 2) + "0" + last.rjust(columns - 1))
    return lines


def stretch(values: Sequence[int], length: int, columns: int) -> np.ndarray:
    """The most in each of so many equal parts of `length` places; 0 past the end."""
    padded = np.zeros(length)
    padded[: len(values)] = values
    edges = np.linspace(0, length, columns + 1)
    first = np.floor(edges[:-1]).astype(int)
    last = np.maximum(np.ceil(edges[1:]).astype(int), first + 1)
    return np.array([padded[a:b].max() for a, b in zip(first, last, strict=True)])


def _row(value: float, unit: float) -> int:
    """The line that a value's top falls in."""
    return max(-int(-value // unit) - 1, 0)


def _cell(solid: float, grey: float) -> str:
    """One character: how much of it each curve fills, in lines."""
    if solid >= 1:
        return "█"
    if grey > solid:
        return "█" if solid >= 0.5 else "░" if grey >= 0.5 else " "
    return _EIGHTHS[max(round(solid * 8), 0)]
