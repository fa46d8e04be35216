"""The graph as inline SVG: causes left, effects right, likely edges dark."""

import numpy as np
from jaxtyping import Float

from frugax.draw import escaped

_COLUMN, _ROW, _WIDE, _HIGH = 190, 74, 118, 34
_AROUND = 56  # for an edge around boxes, and its label
_LEAST = 0.05  # less likely edges are left out


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
    labels: list[str] = []  # last, so that no line crosses them
    at = list(zip(x.tolist(), y.tolist(), strict=True))
    for a, b in drawn.tolist():
        line, label = _edge(at[a], at[b], float(edges[a, b]), names, a, b)
        parts.append(line)
        labels.append(label)
    for i, name in enumerate(names):
        kind = "target" if name == target else "set" if name in settable else "seen"
        short = name if len(name) <= 14 else name[:13] + "…"
        parts.append(
            f'<g class="node {kind}"><title>{escaped(name)}</title>'
            f'<rect x="{x[i]}" y="{y[i]}" width="{_WIDE}" height="{_HIGH}" rx="8"/>'
            f'<text x="{x[i] + _WIDE // 2}" y="{y[i] + 22}" text-anchor="middle">'
            f"{escaped(short)}</text></g>"
        )
    said = ", ".join(
        f"{names[a]} to {names[b]} {edges[a, b]:.0%}" for a, b in drawn.tolist()
    )
    return (
        f'<figure class="chart graph"><svg viewBox="0 0 {width} {height}" '
        f'style="min-width:{min(width, 720)}px;max-width:{width}px" role="img" '
        f'aria-label="{escaped(said or "no edges")}">'
        f"{''.join(parts + labels)}</svg></figure>"
    )


def _edge(
    start: tuple[int, int],
    end: tuple[int, int],
    probability: float,
    names: tuple[str, ...],
    a: int,
    b: int,
) -> tuple[str, str]:
    """The line and its label."""
    if end[0] > start[0]:
        x1, y1 = start[0] + _WIDE, start[1] + _HIGH // 2
        x2, y2 = end[0] - 3, end[1] + _HIGH // 2
        bend = (x2 - x1) // 2
        path = f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
        # Above the line: on its right where it falls, on its left where it rises.
        side = (y2 > y1) - (y2 < y1)
        at, anchor = (x1 + x2) / 2 + 5 * side, ("end", "middle", "start")[side + 1]
        label = (y1 + y2) / 2 - 5
    elif end[0] < start[0]:
        # Back: around below, where it crosses least.
        x1, y1 = start[0] + _WIDE // 2, start[1] + _HIGH
        x2, y2 = end[0] + _WIDE // 2, end[1] + _HIGH + 3
        low = max(y1, y2) + 40
        path = f"M{x1} {y1}C{x1} {low} {x2} {low} {x2} {y2}"
        at, anchor, label = (x1 + x2) / 2, "middle", (y1 + y2) / 8 + 0.75 * low + 14
    else:
        # Within a column: around on the right.
        x1, y1 = start[0] + _WIDE, start[1] + _HIGH // 2
        x2, y2 = end[0] + _WIDE + 3, end[1] + _HIGH // 2
        out = x1 + 22
        path = f"M{x1} {y1}C{out} {y1} {out} {y2} {x2} {y2}"
        at, anchor, label = x1 + 20, "start", (y1 + y2) / 2 + 4
    text = (
        f'<text class="odds" x="{at:.0f}" y="{label:.0f}" text-anchor="{anchor}">'
        f"{probability:.0%}</text>"
        if probability < 0.995
        else ""
    )
    return (
        f'<g opacity="{0.15 + 0.85 * probability:.2f}"><title>{escaped(names[a])} to '
        f'{escaped(names[b])}: {probability:.1%}</title><path class="edge" d="{path}" '
        f'stroke-width="{0.8 + 1.6 * probability:.1f}" marker-end="url(#tip)"/></g>'
    ), text


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
