"""Charts of the memory that programs hold over time, as SVG or as terminal text.

The SVG needs no script and no fonts, and it follows the reader's light or dark theme.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from frugax.budget import format_bytes
from frugax.fileio import write_whole
from frugax.report import element, svg_line, svg_picture, svg_text, ticks

_WIDTH, _HEIGHT = 900, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 104, 112, 58
_MAX_POINTS = 800
# The average width of a bold letter: text cannot be measured here, and labels must not
# overlap.
_LETTER_WIDTH = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"

_Scale = Callable[[float], float]

# Class names end in the index of the curve; curve 1, the plan, stands out.
_STYLE = """
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.l0 { stroke: var(--faint); } .l1 { stroke: var(--s0); }
.a0 { fill: var(--faint); opacity: .14; } .a1 { fill: var(--s0); opacity: .22; }
.d0 { fill: var(--faint); } .d1 { fill: var(--s0); }
.peak { fill: var(--ink); font-weight: 600; stroke: var(--card); stroke-width: 4px;
        paint-order: stroke; }
"""


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
    top = max(limit, *(c.peak_bytes for c in curves.values())) * 1.12
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    px = lambda x: _LEFT + x / length * (right - _LEFT)
    py = lambda y: bottom - y / top * (bottom - _TOP)
    parts = [svg_text(24, 34, title, "title"), svg_text(24, 56, summary)]
    # Round numbers of the largest of B, KiB, MiB, GiB and TiB that fits.
    unit = 1024.0 ** min(int(math.log(max(top, 1), 1024)), 4)
    for tick in ticks(0.0, top / unit, about=6):
        y = tick * unit
        if y < top:
            parts.append(svg_line(_LEFT, py(y), right, py(y), "grid"))
            parts.append(svg_text(_LEFT - 10, py(y) + 4, format_bytes(y), anchor="end"))
    for x in ticks(0.0, length, about=8):
        if x < length:
            parts.append(svg_line(px(x), bottom, px(x), bottom + 5, "axis"))
            parts.append(svg_text(px(x), bottom + 20, f"{x:,.0f}", anchor="middle"))
    parts.append(svg_line(_LEFT, bottom, right, bottom, "axis"))
    parts.append(svg_text((_LEFT + right) / 2, _HEIGHT - 14, x_label, anchor="middle"))
    legend_x = 24.0
    for i, (name, curve) in enumerate(curves.items()):
        parts += _draw_curve(i, curve, length, px, py)
        label = (
            f"{name}: peak {format_bytes(curve.peak_bytes)} counted, "
            f"{format_bytes(curve.measured)} by XLA"
        )
        box = {"class_": f"d{i}", "width": 14, "height": 10, "rx": 2}
        parts.append(element("rect", x=legend_x, y=74, **box))
        parts.append(svg_text(legend_x + 20, 84, label, "strong"))
        legend_x += 40 + 0.85 * _LETTER_WIDTH * len(label)
    parts += [
        svg_line(_LEFT, py(limit), right, py(limit), "limit"),
        svg_text(right + 8, py(limit) - 2, "limit", "limit-text"),
        svg_text(right + 8, py(limit) + 14, format_bytes(limit), "limit-text"),
    ]
    # Labels come last, so that nothing is drawn over them. The plan's label goes first:
    # of two labels in one place only it is drawn.
    taken: list[tuple[float, float]] = []
    for i, curve in reversed(list(enumerate(curves.values()))):
        if not curve.held:
            continue
        x, y = px(curve.peak_at + 0.5), py(curve.peak_bytes)
        parts.append(element("circle", class_=f"d{i}", cx=x, cy=y, r=4))
        label = f"{format_bytes(curve.peak_bytes)} at {curve.names[curve.peak_at]}"
        room = _LETTER_WIDTH * len(label) / 2
        x = min(max(x, _LEFT + room), right - room)
        if all(abs(x - a) > 2 * room or abs(y - b) > 18 for a, b in taken):
            parts.append(svg_text(x, y - 10, label, "peak", anchor="middle"))
        taken.append((x, y))
    return svg_picture(
        title,
        parts,
        width=_WIDTH,
        height=_HEIGHT,
        description=summary,
        style=_STYLE,
    )


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


def _draw_curve(
    i: int, curve: MemoryCurve, length: int, px: _Scale, py: _Scale
) -> list[str]:
    """The area under a curve, and its edge; each operation is a step."""
    columns = min(length, _MAX_POINTS)
    width = length / columns
    levels = stretch(curve.held, length, columns)
    drawn = levels[: math.ceil(len(curve.held) / width)]
    steps = [
        f"{px(x * width):.1f},{py(y):.1f}"
        for n, y in enumerate(drawn)
        for x in (n, n + 1)
    ]
    if not steps:
        return []
    edge = " L".join(steps)
    begin, end = f"{px(0):.1f},{py(0):.1f}", f"{px(len(drawn) * width):.1f},{py(0):.1f}"
    return [
        element("path", class_=f"a{i}", d=f"M{begin} L{edge} L{end} Z"),
        element("path", class_=f"line l{i}", d=f"M{edge}"),
    ]


def _cell(solid: float, grey: float) -> str:
    """One character, from how much of its line each curve fills."""
    if solid >= 1 or grey > solid >= 0.5:
        return "█"
    if grey > solid:
        return "░" if grey >= 0.5 else " "
    return _EIGHTHS[max(round(solid * 8), 0)]
