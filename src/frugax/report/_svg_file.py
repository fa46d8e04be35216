"""`svg_file`: turn a chart of an HTML page into a stand-alone SVG file."""

from xml.etree import ElementTree as ET

from ._markup import Markup, element
from ._page import PAGE_STYLE

_MARGIN, _LETTER = 16, 8.4  # px; the second is the width of a character, on average
# Stated, as pages enlarge the text of charts on phones, where keys would overlap.
_KEY_STYLE = "font-size:15px"


def svg_file(figure: str, *, style: str = PAGE_STYLE) -> str:
    """Turn a figure of a page into an SVG document, for notebooks and READMEs.

    Args:
        figure: a `<figure>` as `line_chart` and `bar_chart` return it.
        style: CSS that the figure needs.

    Returns:
        The text of the file, self-contained, for light and dark themes.

    Raises:
        ValueError: there is nothing drawn in the figure.

    Example:
        >>> import numpy as np
        >>> from frugax.report import line_chart
        >>> steps = np.arange(9.0)
        >>> svg_file(line_chart({"loss": (steps, 1 / (1 + steps))}, title="loss"))[:4]
        '<svg'
    """
    tree = ET.fromstring(figure)
    drawing = tree.find("svg")
    if drawing is None:
        said = " ".join(tree.itertext())
        raise ValueError(f"the figure has no drawing, only the text {said!r}.")
    *_, width, height = map(float, drawing.attrib.pop("viewBox").split())
    about = drawing.attrib.pop("aria-label", "")
    # What only a page's script reads or moves would double the file, or be seen.
    drawing.attrib.clear()
    for cursor in drawing.findall("line[@class='cursor']"):
        drawing.remove(cursor)
    drawing.tag = "g"
    title = tree.findtext("figcaption/b", "")
    x, top = float(_MARGIN), 24.0 * bool(title) + _MARGIN
    strong = "fill:var(--ink);font-size:15px;font-weight:600"
    head = [element("text", title, x=x, y=top - 8, style=strong)]
    for key in tree.iterfind("figcaption/span[@class='key']"):
        name, colour = "".join(key.itertext()), key.find("i")
        kind = "s0" if colour is None else colour.get("class", "s0")
        swatch = {"x": x, "y": top, "width": 10, "height": 10, "rx": 3}
        head.append(element("rect", style=f"fill:var(--{kind})", **swatch))
        head.append(element("text", name, x=x + 16, y=top + 10, style=_KEY_STYLE))
        x += 34 + _LETTER * len(name)
    top += 22 * (x > _MARGIN)
    drawing.set("transform", f"translate({_MARGIN} {top:g})")
    inner = ET.tostring(drawing, encoding="unicode")
    width, height = width + 2 * _MARGIN, height + top + _MARGIN / 2
    return element(
        "svg",
        element("title", title or about),
        element("desc", about),
        element("style", Markup(style + "text { font-family:var(--font); }")),
        element("rect", style="fill:var(--card)", width=width, height=height, rx=10),
        element("g", head, Markup(inner), class_=tree.get("class")),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
    )
