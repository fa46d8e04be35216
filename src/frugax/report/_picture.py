"""Build a stand-alone SVG file in the pages' theme, from text, lines and elements."""

from ._markup import Child, Markup, element
from ._theme import svg_theme

# What pictures share; a picture adds the classes of its own marks.
_STYLE = (
    ".back { fill:var(--card); }\n"
    ".title { font-size:18px; font-weight:600; fill:var(--ink); }\n"
    ".strong { fill:var(--ink); }\n"
    ".grid { stroke:var(--line); }\n"
    ".axis { stroke:var(--soft); }\n"
    ".limit { stroke:var(--bad); stroke-width:1.5; stroke-dasharray:6 4; }\n"
    ".limit-text { fill:var(--bad); font-weight:600; }\n"
)


def svg_picture(
    title: str,
    *parts: Child,
    width: float,
    height: float,
    description: str = "",
    style: str = "",
) -> str:
    """Build an SVG document with a ground, which needs no script and no fonts.

    It follows the reader's light or dark theme by the colours of `COLOURS`, which are
    CSS variables. The classes `title`, `strong`, `grid`, `axis`, `limit` and
    `limit-text` have a style.

    Args:
        title: read out by screen readers, and shown as the document's name.
        *parts: the drawing, as of `element`.
        width: of the picture, in px.
        height: of the picture, in px.
        description: a longer text for screen readers; "" leaves it out.
        style: CSS of the picture's own classes.

    Returns:
        The text of an SVG file.
    """
    drawn = element(
        "svg",
        element("title", title),
        element("desc", description) if description else "",
        element("style", Markup(svg_theme() + _STYLE + style)),
        element("rect", class_="back", width=width, height=height),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
    )
    return f"{drawn}\n"


def svg_text(
    x: float, y: float, text: str, class_: str | None = None, anchor: str = "start"
) -> Markup:
    """Build a line of text; `anchor` is its start, middle or end at x."""
    return element("text", text, class_=class_, x=x, y=y, text_anchor=anchor)


def svg_line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Build a straight line."""
    return element("line", class_=class_, x1=x1, y1=y1, x2=x2, y2=y2)
