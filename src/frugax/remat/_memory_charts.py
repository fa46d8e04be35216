"""Charts of the memory that programs hold over time, as SVG or as terminal text.

The SVG needs no script and no fonts, and it follows the reader's light or dark theme.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from frugax.budget import format_bytes
from frugax.fileio import write_whole
from frugax.report import Axis, Plot

_MAX_POINTS = 800
_COLOURS = ("faint", "s0")  # of a program without its plan, and with it
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """The bytes that one program holds at each of its operations.

    Attributes:
        held: bytes while each operation runs, of the budget's kind.
        names: of the operations.
        measured: bytes of that kind by XLA's own account.
        counted_on: "compiled" if the operations, their order and their places in memory
            are those of the compiled program. "traced" if this backend does not reveal
            them and the program is counted as written; XLA reorders and fuses, so then
            only `measured` can be relied on.
    """

    held: tuple[int, ...]
    names: tuple[str, ...]
    measured: int
    counted_on: Literal["compiled", "traced"]

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once."""
        return max(self.held, default=0)

    @property
    def peak_at(self) -> int:
        """The first operation at the peak; 0 without operations."""
        return self.held.index(self.peak_bytes) if self.held else 0


def draw_svg(
    *,
    title: str,
    summary: str,
    x_label: str,
    curves: Mapping[str, MemoryCurve],
    limit: int,
) -> str:
    """An SVG document with two curves over one pair of axes."""
    length = max(2, *(len(c.held) for c in curves.values()))
    # A margin above the highest curve has room for the label of its peak.
    top = max(limit, 1, *(c.peak_bytes for c in curves.values())) * 1.12
    # Round numbers of the largest of B, KiB, MiB, GiB and TiB that fits.
    unit = next(1024.0**n for n in (4, 3, 2, 1, 0) if top >= 1024.0**n)
    plot = Plot(
        title,
        x=Axis(low=0, high=length, label=x_label, about=8, text="{:,.0f}".format),
        y=Axis(low=0, high=top, about=6, unit=unit, text=format_bytes),
        width=880,
        height=310,
        right=76,
        notes=(summary,),
        description=summary,
    )
    for colour, (name, curve) in zip(_COLOURS, curves.items(), strict=True):
        edges, levels = _sample(curve, length)
        plot.steps(edges, levels, colour)
        counted, measured = map(format_bytes, (curve.peak_bytes, curve.measured))
        plot.key(f"{name}: peak {counted} counted, {measured} by XLA", colour)
    plot.limit((0, length), (limit, limit))
    plot.text(length, limit, "limit", "limit", shift=(8, -2))
    plot.text(length, limit, format_bytes(limit), "limit", shift=(8, 14))
    # The plan comes first: of two labels in one place only it is drawn.
    for colour, curve in reversed([*zip(_COLOURS, curves.values(), strict=True)]):
        if curve.held:
            at = curve.peak_at + 0.5, curve.peak_bytes
            plot.dots([at[0]], [at[1]], colour)
            words = f"{format_bytes(curve.peak_bytes)} at {curve.names[curve.peak_at]}"
            above = {"anchor": "middle", "shift": (0, -10), "is_inside": True}
            plot.text(*at, words, "label", **above)
    return plot.svg()


def draw_blocks(
    *,
    planned: Sequence[int],
    unplanned: Sequence[int],
    limit: int,
    width: int,
    height: int,
) -> list[str]:
    """The lines of a plot with both axes, drawn with block characters."""
    if width < 40 or height < 4:
        raise ValueError(
            f"a picture needs at least 40 columns and 4 lines, got {width} and "
            f"{height}."
        )
    top = max(*planned, *unplanned, limit, 1)
    unit = top / height
    limit_row = max(-int(-limit // unit) - 1, 0)
    labels = {height - 1: format_bytes(top), limit_row: format_bytes(limit)}
    margin = max(map(len, labels.values()))
    columns = width - margin - 2
    length = max(len(planned), len(unplanned), 1)
    solid, grey = (
        stretch(values, length, columns) / unit for values in (planned, unplanned)
    )
    lines: list[str] = []
    for row in reversed(range(height)):
        cells = [_cell(p - row, u - row) for p, u in zip(solid, grey, strict=True)]
        if row == limit_row:
            cells = [c.translate({ord(" "): "┄", ord("░"): "┄"}) for c in cells]
        tick = "┤" if row in labels else "│"
        lines.append(f"{labels.get(row, ''):>{margin}} {tick}{''.join(cells)}".rstrip())
    lines.append(f"{'0':>{margin}} └" + "─" * columns)
    lines.append(" " * (margin + 2) + "0" + str(length - 1).rjust(columns - 1))
    return lines


def stretch(
    values: Sequence[int], length: int, columns: int
) -> Float[np.ndarray, " columns"]:
    """The maximum in each of `columns` equal parts of `length` places; 0 past the end.

    A maximum, because a mean or a sample would hide a peak of one operation.
    """
    padded = np.zeros(length)
    padded[: len(values)] = values
    edges = np.linspace(0, length, columns + 1)
    first = np.floor(edges[:-1]).astype(int)
    last = np.maximum(np.ceil(edges[1:]).astype(int), first + 1)
    return np.array([padded[a:b].max() for a, b in zip(first, last, strict=True)])


def save_picture(
    path: str | os.PathLike[str], *, svg: Callable[[], str], text: Callable[[], str]
) -> Path:
    """Write a picture to a file that ends in .svg, or its text to one in .txt.

    Raises:
        ValueError: `path` ends in something else.
        OutputError: the file cannot be written.
    """
    target = Path(path)
    if target.suffix not in (".svg", ".txt"):
        raise ValueError(
            f"{target}: a picture is saved as .svg, or as .txt for a terminal; got "
            f"{target.suffix or 'no ending'}."
        )
    write_whole(target, svg() if target.suffix == ".svg" else f"{text()}\n")
    return target


def _sample(
    curve: MemoryCurve, length: int
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " n"]]:
    """The highest bytes of each part of a curve, and the edges of the parts."""
    columns = min(length, _MAX_POINTS)
    drawn = -(-len(curve.held) * columns // length)
    edges = np.linspace(0, length, columns + 1)
    return edges[: drawn + 1], stretch(curve.held, length, columns)[:drawn]


def _cell(solid: float, grey: float) -> str:
    """One character, from how much of its line each curve fills."""
    if solid >= 1 or grey > solid >= 0.5:
        return "█"
    if grey > solid:
        return "░" if grey >= 0.5 else " "
    return _EIGHTHS[max(round(solid * 8), 0)]
