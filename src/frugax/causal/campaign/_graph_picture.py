"""The graph as inline SVG: causes left, effects right, likely edges dark."""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from frugax.report import escape

_COLUMN, _ROW, _WIDE, _HIGH = 190, 74, 118, 34
_AROUND = 56  # for an edge around boxes, and its label
_LEAST = 0.05  # less likely edges are left out
_LETTER, _LINE = 7, 13  # what a label takes: a letter's width, a line's height
# Where on its edge a label may stand, best first.
_ALONG = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73, 0.2, 0.8, 0.14, 0.86)

_Point: TypeAlias = tuple[float, float]
# Two ends and the two points between them that bend it.
_Curve: TypeAlias = tuple[_Point, _Point, _Point, _Point]
# Left, top, right, bottom.
_Box: TypeAlias = tuple[float, float, float, float]


def graph_picture(
    names: tuple[str, ...],
    edges: Float[np.ndarray, "d d"],
    *,
    target: str,
    settable: frozenset[str],
) -> str:
    """Draw variables and the probabilities of edges between them.

    Args:
        names: the variables.
        edges: probability of each edge, `[parent, child]`.
        target: is marked.
        settable: variables that experiments may set; are marked.

    Returns:
        A `<figure>`.
    """
    column = _columns(edges)
    row = np.zeros(len(names), int)
    for c in np.unique(column):
        members = np.flatnonzero(column == c)
        row[members] = np.arange(len(members))
    # A little lower in every other column: an edge then misses the box between.
    x = 12 + column * _COLUMN
    y = 12 + row * _ROW + (column % 2) * _ROW // 2
    drawn = np.argwhere(edges >= _LEAST)
    # Room for what goes around: below, and right of the last column.
    below = (column[drawn[:, 0]] > column[drawn[:, 1]]).any()
    beside = (column[drawn] == column.max()).all(1).any()
    width = int(x.max()) + _WIDE + (_AROUND if beside else 12)
    height = int(y.max()) + _HIGH + (_AROUND if below else 12)
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" '
        'class="tip"/></marker></defs>'
    ]
    at = list(zip(x.tolist(), y.tolist(), strict=True))
    taken = [(left, top, left + _WIDE, top + _HIGH) for left, top in at]
    labels: list[str] = []  # last, so that no line crosses them
    no_room: list[str] = []
    for a, b in sorted(drawn.tolist(), key=lambda ab: -edges[tuple(ab)]):
        probability = float(edges[a, b])
        curve = _curve(at[a], at[b])
        parts.append(_line(curve, probability, f"{names[a]} to {names[b]}"))
        if probability >= 0.995:
            continue
        box = _free(curve, f"{probability:.0%}", taken, (width, height))
        if box is None:
            no_room.append(f"{names[a]} to {names[b]} {probability:.0%}")
        else:
            taken.append(box)
            labels.append(
                f'<text class="odds" x="{(box[0] + box[2]) / 2:.0f}" '
                f'y="{box[3] - 3:.0f}" text-anchor="middle">{probability:.0%}</text>'
            )
    for i, name in enumerate(names):
        kind = "target" if name == target else "set" if name in settable else "seen"
        short = name if len(name) <= 14 else name[:13] + "…"
        parts.append(
            f'<g class="node {kind}"><title>{escape(name)}</title>'
            f'<rect x="{x[i]}" y="{y[i]}" width="{_WIDE}" height="{_HIGH}" rx="8"/>'
            f'<text x="{x[i] + _WIDE // 2}" y="{y[i] + 22}" text-anchor="middle">'
            f"{escape(short)}</text></g>"
        )
    said = ", ".join(
        f"{names[a]} to {names[b]} {edges[a, b]:.0%}" for a, b in drawn.tolist()
    )
    more = ""
    if no_room:
        text = f"No room in the picture for: {', '.join(no_room)}."
        more = f'<figcaption class="note">{escape(text)}</figcaption>'
    return (
        f'<figure class="chart graph"><svg viewBox="0 0 {width} {height}" '
        f'style="min-width:{min(width, 720)}px;max-width:{width}px" role="img" '
        f'aria-label="{escape(said or "no edges")}">'
        f"{''.join(parts + labels)}</svg>{more}</figure>"
    )


def _curve(start: tuple[int, int], end: tuple[int, int]) -> _Curve:
    """From one box to another."""
    if end[0] > start[0]:
        x1, y1 = start[0] + _WIDE, start[1] + _HIGH // 2
        x2, y2 = end[0] - 3, end[1] + _HIGH // 2
        bend = (x2 - x1) // 2
        return (x1, y1), (x1 + bend, y1), (x2 - bend, y2), (x2, y2)
    if end[0] < start[0]:
        # Back: around below, where it crosses least.
        x1, y1 = start[0] + _WIDE // 2, start[1] + _HIGH
        x2, y2 = end[0] + _WIDE // 2, end[1] + _HIGH + 3
        low = max(y1, y2) + 40
        return (x1, y1), (x1, low), (x2, low), (x2, y2)
    # Within a column: around on the right.
    x1, y1 = start[0] + _WIDE, start[1] + _HIGH // 2
    x2, y2 = end[0] + _WIDE + 3, end[1] + _HIGH // 2
    return (x1, y1), (x1 + 22, y1), (x1 + 22, y2), (x2, y2)


def _line(curve: _Curve, probability: float, said: str) -> str:
    first, *rest = (f"{x} {y}" for x, y in curve)
    return (
        f'<g opacity="{0.15 + 0.85 * probability:.2f}"><title>{escape(said)}: '
        f'{probability:.1%}</title><path class="edge" d="M{first}C{" ".join(rest)}" '
        f'stroke-width="{0.8 + 1.6 * probability:.1f}" marker-end="url(#tip)"/></g>'
    )


def _free(
    curve: _Curve, text: str, taken: list[_Box], size: tuple[int, int]
) -> _Box | None:
    """Where a label touches no other and no variable; None where there is no room."""
    wide = _LETTER * len(text) + 2
    for t in _ALONG:
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
        x, y = (
            sum(w * point[axis] for w, point in zip(weights, curve, strict=True))
            for axis in (0, 1)
        )
        for up in (_LINE, -3, _LINE / 2):  # above the line, below it, on it
            box = (x - wide / 2, y - up, x + wide / 2, y - up + _LINE)
            inside = box[0] >= 0 and box[1] >= 0
            inside = inside and box[2] <= size[0] - 2 and box[3] <= size[1] - 2
            if inside and not any(_touch(box, other) for other in taken):
                return box
    return None


def _touch(one: _Box, other: _Box) -> bool:
    return (one[0] < other[2] and other[0] < one[2] and one[1] < other[3]) and other[
        1
    ] < one[3]


def _columns(edges: Float[np.ndarray, "d d"]) -> np.ndarray:
    """How many likely edges lead one after the other to each variable."""
    d = len(edges)
    column = np.zeros(d, int)
    likely = edges > 0.5
    for _ in range(d):  # a cycle of likely edges ends here, too
        for b in range(d):
            causes = np.flatnonzero(likely[:, b])
            if len(causes):
                column[b] = min(max(column[b], int(column[causes].max()) + 1), d - 1)
    return np.unique(column, return_inverse=True)[1].reshape(-1)
