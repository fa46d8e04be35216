"""Draw the causal graph of a campaign's report: variables on a ring, likely edges."""

import numpy as np
from jaxtyping import Float

from frugax.report import Markup, element

# All sizes are in CSS pixels.
_RADIUS, _DOT, _MARGIN, _NAME_WIDTH, _LINE = 150, 9, 26, 120, 13
_BEND = 0.1  # of the length of an edge, so that one and its reverse lie apart
_MAX_LETTERS = 14
MIN_PROB = 0.05  # less likely edges are left out
_CERTAIN = 0.995  # rounds to 100 %; such edges get no label


def draw_graph(
    names: tuple[str, ...],
    edges: Float[np.ndarray, "d d"],
    *,
    target: str,
    settable: frozenset[str],
) -> Markup:
    """Draw variables and the probabilities of the edges between them."""
    angle = 2 * np.pi * np.arange(len(names)) / len(names)
    way = np.stack([np.sin(angle), -np.cos(angle)], axis=1)
    width = 2 * (_RADIUS + _MARGIN + _NAME_WIDTH)
    height = 2 * (_RADIUS + _MARGIN)
    at = np.array([width, height]) / 2 + _RADIUS * way
    drawn = np.argwhere(edges >= MIN_PROB).tolist()
    kinds = {name: "set" for name in settable} | {target: "target"}
    lines = [
        _draw_edge(at[a], at[b], float(edges[a, b]), f"{names[a]} to {names[b]}")
        for a, b in drawn
    ]
    dots = [
        _draw_node(name, point, outwards, kinds.get(name, "seen"))
        for name, point, outwards in zip(names, at, way, strict=True)
    ]
    description = ", ".join(
        f"{names[a]} to {names[b]} {edges[a, b]:.0%}" for a, b in drawn
    )
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
        orient="auto",
    )
    return element(
        "svg",
        element("defs", marker),
        [*lines, *dots],
        viewBox=f"0 0 {width} {height}",
        style=f"max-width:{width}px",
        role="img",
        aria_label=description or "no edges",
    )


def _draw_node(name: str, at: np.ndarray, outwards: np.ndarray, kind: str) -> Markup:
    short = name
    if len(name) > _MAX_LETTERS:
        short = name[: _MAX_LETTERS - 1] + "…"
    side = float(outwards[0])
    anchor = "middle" if abs(side) < 0.1 else "start" if side > 0 else "end"
    x, y = at.tolist()
    text_x, text_y = (at + (_DOT + 5) * outwards).tolist()
    # The line of the text is below the dot at the bottom, and above it at the top.
    text_y += _LINE * (0.35 + 0.35 * float(outwards[1]))
    return element(
        "g",
        element("title", name),
        element("circle", cx=round(x), cy=round(y), r=_DOT),
        element("text", short, x=round(text_x), y=round(text_y), text_anchor=anchor),
        class_=f"node {kind}",
    )


def _draw_edge(start: np.ndarray, end: np.ndarray, prob: float, title: str) -> Markup:
    along = end - start
    length = float(np.hypot(*along)) or 1.0
    middle = (start + end) / 2 + _BEND * np.array([-along[1], along[0]])
    start = start + (_DOT + 1) * along / length
    end = end - (_DOT + 4) * along / length
    (x0, y0), (x1, y1), (x2, y2) = (
        (round(x), round(y)) for x, y in (start, middle, end)
    )
    path = element(
        "path",
        class_="edge",
        d=f"M{x0} {y0}Q{x1} {y1} {x2} {y2}",
        stroke_width=0.8 + 1.6 * prob,
        marker_end="url(#tip)",
        # Even the least likely edge stays visible: experiments settle such doubt.
        opacity=0.15 + 0.85 * prob,
    )
    label = ""
    if prob < _CERTAIN:
        x, y = (start + 2 * middle + end) / 4
        where = {"x": round(x), "y": round(y + 4), "text_anchor": "middle"}
        label = element("text", f"{prob:.0%}", class_="odds", **where)
    return element("g", element("title", f"{title}: {prob:.1%}"), path, label)
