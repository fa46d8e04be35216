"""Draw the causal graph of a campaign's report as SVG, likely edges dark."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from frugax.report import Markup, element, fragment

# All sizes are in CSS pixels.
_COLUMN_STEP, _ROW_STEP, _BOX_WIDTH, _BOX_HEIGHT = 190, 74, 118, 34
_MARGIN = 12
_DETOUR = 56  # room for an edge around boxes, and its label
_LETTER_WIDTH, _LINE_HEIGHT = 7, 13
_MAX_LETTERS = 14
_MIN_PROB = 0.05  # less likely edges are left out
_CERTAIN = 0.995  # rounds to 100 %; such edges get no label
# Positions of a label along its edge, best first.
_LABEL_POSITIONS = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73, 0.2, 0.8, 0.14, 0.86)

_Point: TypeAlias = tuple[float, float]
_Bezier: TypeAlias = tuple[_Point, _Point, _Point, _Point]
_Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom


def draw_graph(
    names: tuple[str, ...],
    edges: Float[np.ndarray, "d d"],
    *,
    target: str,
    settable: frozenset[str],
) -> Markup:
    """Draw variables and the probabilities of the edges between them."""
    column = _assign_columns(edges)
    row = np.zeros(len(names), int)
    for c in np.unique(column):
        members = np.flatnonzero(column == c)
        row[members] = np.arange(len(members))
    # Every other column is half a row lower: its boxes do not cover edges past them.
    x = _MARGIN + column * _COLUMN_STEP
    y = _MARGIN + row * _ROW_STEP + (column % 2) * _ROW_STEP // 2
    drawn = np.argwhere(edges >= _MIN_PROB)
    width = int(x.max()) + _BOX_WIDTH + _MARGIN
    height = int(y.max()) + _BOX_HEIGHT + _MARGIN
    # Two kinds of edges leave the grid of boxes: those within the last column pass on
    # its right, and those back to an earlier column pass below.
    if (column[drawn] == column.max()).all(1).any():
        width += _DETOUR - _MARGIN
    if (column[drawn[:, 0]] > column[drawn[:, 1]]).any():
        height += _DETOUR - _MARGIN
    at = list(zip(x.tolist(), y.tolist(), strict=True))
    taken = [(left, top, left + _BOX_WIDTH, top + _BOX_HEIGHT) for left, top in at]
    lines: list[Markup] = []
    labels: list[Markup] = []  # drawn last, so that no line crosses them
    no_room: list[str] = []
    # The likeliest edges come first and get the best places for their labels.
    for a, b in sorted(drawn.tolist(), key=lambda ab: -edges[tuple(ab)]):
        prob = float(edges[a, b])
        bezier = _route(at[a], at[b])
        lines.append(_draw_edge(bezier, prob, f"{names[a]} to {names[b]}"))
        if prob >= _CERTAIN:
            continue
        box = _place_label(bezier, f"{prob:.0%}", taken, (width, height))
        if box is None:
            no_room.append(f"{names[a]} to {names[b]} {prob:.0%}")
            continue
        taken.append(box)
        labels.append(
            element(
                "text",
                f"{prob:.0%}",
                class_="odds",
                x=round((box[0] + box[2]) / 2),
                y=round(box[3] - 3),
                text_anchor="middle",
            )
        )
    kinds = {name: "set" for name in settable} | {target: "target"}
    boxes = [
        _draw_node(name, corner, kinds.get(name, "seen"))
        for name, corner in zip(names, at, strict=True)
    ]
    description = ", ".join(
        f"{names[a]} to {names[b]} {edges[a, b]:.0%}" for a, b in drawn.tolist()
    )
    svg = element(
        "svg",
        _draw_arrow_tip(),
        [*lines, *boxes, *labels],
        viewBox=f"0 0 {width} {height}",
        style=f"min-width:{min(width, 720)}px;max-width:{width}px",
        role="img",
        aria_label=description or "no edges",
    )
    note = fragment()
    if no_room:
        text = f"No room in the picture for: {', '.join(no_room)}."
        note = element("figcaption", text, class_="note")
    return element("figure", svg, note, class_="chart graph")


def _draw_arrow_tip() -> Markup:
    tip = element("path", d="M0 0 8 4 0 8z", class_="tip")
    marker = element(
        "marker",
        tip,
        id="tip",
        viewBox="0 0 8 8",
        refX=7,
        refY=4,
        markerWidth=7,
        markerHeight=7,
        orient="auto-start-reverse",
    )
    return element("defs", marker)


def _draw_node(name: str, corner: tuple[int, int], kind: str) -> Markup:
    x, y = corner
    short = name
    if len(name) > _MAX_LETTERS:
        short = name[: _MAX_LETTERS - 1] + "…"
    return element(
        "g",
        element("title", name),
        element("rect", x=x, y=y, width=_BOX_WIDTH, height=_BOX_HEIGHT, rx=8),
        element("text", short, x=x + _BOX_WIDTH // 2, y=y + 22, text_anchor="middle"),
        class_=f"node {kind}",
    )


def _draw_edge(bezier: _Bezier, prob: float, title: str) -> Markup:
    start, *rest = (f"{x} {y}" for x, y in bezier)
    path = element(
        "path",
        class_="edge",
        d=f"M{start}C{' '.join(rest)}",
        stroke_width=0.8 + 1.6 * prob,
        marker_end="url(#tip)",
    )
    # Even the least likely edge stays visible: such doubt is settled by experiments.
    title_ = element("title", f"{title}: {prob:.1%}")
    return element("g", title_, path, opacity=0.15 + 0.85 * prob)


def _route(start: tuple[int, int], end: tuple[int, int]) -> _Bezier:
    """Return the curve from one box to another; both by their upper left corners."""
    middle = _BOX_HEIGHT // 2
    x1, y1 = start[0] + _BOX_WIDTH, start[1] + middle
    if end[0] > start[0]:
        x2, y2 = end[0] - 3, end[1] + middle
        bend = (x2 - x1) // 2
        return (x1, y1), (x1 + bend, y1), (x2 - bend, y2), (x2, y2)
    if end[0] < start[0]:
        # Back below all boxes, where it crosses the fewest edges.
        x1, y1 = start[0] + _BOX_WIDTH // 2, start[1] + _BOX_HEIGHT
        x2, y2 = end[0] + _BOX_WIDTH // 2, end[1] + _BOX_HEIGHT + 3
        low = max(y1, y2) + 40
        return (x1, y1), (x1, low), (x2, low), (x2, y2)
    # Within a column: around on the right.
    x2, y2 = end[0] + _BOX_WIDTH + 3, end[1] + middle
    return (x1, y1), (x1 + 22, y1), (x1 + 22, y2), (x2, y2)


def _place_label(
    bezier: _Bezier, text: str, taken: list[_Box], size: tuple[int, int]
) -> _Box | None:
    """Find a place for a label that touches nothing; None if there is no room."""
    for left, top, right, bottom in _list_label_boxes(bezier, text):
        inside = left >= 0 and top >= 0 and right <= size[0] - 2
        if not inside or bottom > size[1] - 2:
            continue
        if not any(
            left < other[2]
            and other[0] < right
            and top < other[3]
            and other[1] < bottom
            for other in taken
        ):
            return left, top, right, bottom
    return None


def _list_label_boxes(bezier: _Bezier, text: str) -> Iterator[_Box]:
    width = _LETTER_WIDTH * len(text) + 2
    for t in _LABEL_POSITIONS:
        # The Bernstein polynomials of degree three.
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
        x, y = np.array(weights) @ np.array(bezier, float)
        for up in (_LINE_HEIGHT, -3, _LINE_HEIGHT / 2):  # above, below, on the line
            yield x - width / 2, y - up, x + width / 2, y - up + _LINE_HEIGHT


def _assign_columns(edges: Float[np.ndarray, "d d"]) -> np.ndarray:
    """Return the length of the longest path of likely edges to each variable."""
    d = len(edges)
    column = np.zeros(d, int)
    likely = edges > 0.5
    # Marginal probabilities can form a cycle: d passes end in any case.
    for _ in range(d):
        for b in range(d):
            causes = np.flatnonzero(likely[:, b])
            if len(causes):
                column[b] = min(max(column[b], int(column[causes].max()) + 1), d - 1)
    return np.unique(column, return_inverse=True)[1].reshape(-1)
