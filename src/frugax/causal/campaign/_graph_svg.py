"""Draw the causal graph of a campaign's report as SVG, likely edges dark."""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from frugax.report import Markup, element

# All sizes are in CSS pixels.
_COLUMN_STEP, _ROW_STEP, _BOX_WIDTH, _BOX_HEIGHT = 190, 74, 118, 34
_MARGIN = 12
# Room for an edge below boxes or on their right, and its label.
_BELOW, _BESIDE = 56, 104
# Of an edge within a column: further out for each row, so that no two are in one place.
_BEND, _MAX_BEND = 30, 90
_MAX_LETTERS = 14
MIN_PROB = 0.05  # less likely edges are left out
_CERTAIN = 0.995  # rounds to 100 %; such edges get no label

_Point: TypeAlias = tuple[float, float]
_Bezier: TypeAlias = tuple[_Point, _Point, _Point, _Point]


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
    drawn = np.argwhere(edges >= MIN_PROB)
    width = int(x.max()) + _BOX_WIDTH + _MARGIN
    height = int(y.max()) + _BOX_HEIGHT + _MARGIN
    # Two kinds of edges leave the grid of boxes: those within the last column pass on
    # its right, and those back to an earlier column pass below.
    if (column[drawn] == column.max()).all(1).any():
        width += _BESIDE - _MARGIN
    if (column[drawn[:, 0]] > column[drawn[:, 1]]).any():
        height += _BELOW - _MARGIN
    at = list(zip(x.tolist(), y.tolist(), strict=True))
    lines: list[Markup] = []
    labels: list[Markup] = []  # drawn last, so that no line crosses them
    for a, b in drawn.tolist():
        prob = float(edges[a, b])
        bezier = _route(at[a], at[b])
        lines.append(_draw_edge(bezier, prob, f"{names[a]} to {names[b]}"))
        if prob < _CERTAIN:
            labels.append(_draw_label(bezier, f"{prob:.0%}"))
    kinds = {name: "set" for name in settable} | {target: "target"}
    boxes = [
        _draw_node(name, corner, kinds.get(name, "seen"))
        for name, corner in zip(names, at, strict=True)
    ]
    description = ", ".join(
        f"{names[a]} to {names[b]} {edges[a, b]:.0%}" for a, b in drawn.tolist()
    )
    return element(
        "svg",
        _draw_arrow_tip(),
        [*lines, *boxes, *labels],
        viewBox=f"0 0 {width} {height}",
        style=f"min-width:{min(width, 720)}px;max-width:{width}px",
        role="img",
        aria_label=description or "no edges",
    )


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
    bend = min(_BEND * (abs(y2 - y1) // _ROW_STEP), _MAX_BEND)
    return (x1, y1), (x1 + bend, y1), (x1 + bend, y2), (x2, y2)


def _draw_label(bezier: _Bezier, text: str) -> Markup:
    # At 0.4 of the curve, by the Bernstein polynomials of degree three: nearer to its
    # start, so that there and back have a label each.
    x, y = np.array([0.216, 0.432, 0.288, 0.064]) @ np.array(bezier, float)
    return element(
        "text",
        text,
        class_="odds",
        x=round(x),
        y=round(y - 3),
        text_anchor="middle",
    )


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
