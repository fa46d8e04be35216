"""The SVG elements that all drawings of arrays share: labels, panels, outlines, arrows.

Colours are given twice: as attributes, for programs that read no style sheets and for
pages whose policy forbids them, and as classes, which follow the reader's light or dark
mode. The classes begin with `fx-`, so that a page may hold many drawings and styles of
its own.
"""

import base64
import itertools
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, UInt8

from frugax.report import Markup, element, format_number

from ._palettes import LIGHT_ABOVE, LUMA, Palette
from ._picture import Picture, encode_png

# Smaller cells get no grid lines, which would cover their colours.
_MIN_CELL_WITH_LINES = 5
# Beyond this many rectangles an embedded PNG is smaller, and much faster to draw. It
# has no open cells, so a picture with unknown ones may have more.
_MAX_RECTANGLES, _MAX_RECTANGLES_WITH_HOLES = 1500, 6000

_STYLE = Markup(
    ".fx-back{fill:#fff}.fx-ink{fill:#1b1f24}.fx-soft{fill:#5b6470}"
    ".fx-mark{stroke:#1b1f24}.fx-text{font:13px system-ui,'Segoe UI',Helvetica,Arial,"
    "sans-serif}.fx-title{font-size:15px;font-weight:600}"
    "@media(prefers-color-scheme:dark){.fx-back{fill:#1b1f24}.fx-ink{fill:#e7e9ec}"
    ".fx-soft{fill:#9aa4b0}.fx-mark{stroke:#e7e9ec}}"
)
_INKS = {"ink": "#1b1f24", "soft": "#5b6470"}
# Average widths of a letter in pixels: no font is at hand to measure text with.
_LETTER_WIDTHS = {True: 8.4, False: 7.0}  # by whether the text is a title


def label(
    x: float,
    y: float,
    text: str,
    *,
    ink: str = "soft",
    is_title: bool = False,
    is_centred: bool = False,
) -> Markup:
    """Draw a line of text with its left end, or its centre, at `x`."""
    size, weight, classes = 13, None, f"fx-text fx-{ink}"
    if is_title:
        size, weight, classes = 15, 600, f"{classes} fx-title"
    return element(
        "text",
        text,
        class_=classes,
        x=x,
        y=y,
        fill=_INKS[ink],
        font_family="sans-serif",
        font_size=size,
        font_weight=weight,
        text_anchor="middle" if is_centred else None,
    )


def title_label(x: float, y: float, title: str, width: float) -> list[Markup]:
    """Draw a title, shortened to `width`; nothing for an empty title."""
    if not title:
        return []
    text = shorten(title, width, is_title=True)
    return [label(x, y, text, ink="ink", is_title=True)]


def text_width(text: str, *, is_title: bool = False) -> float:
    """Estimate the width of a text in pixels."""
    return len(text) * _LETTER_WIDTHS[is_title]


def shorten(text: str, width: float, *, is_title: bool = False) -> str:
    """Cut a text that would be wider than `width`."""
    letters = max(int(width / _LETTER_WIDTHS[is_title]), 1)
    if len(text) <= letters:
        return text
    return text[: letters - 1] + "…"


def cell_size(rows: int, columns: int, *, room: int) -> int:
    """Choose the pixels of a cell; whole pixels, since edges would blur otherwise."""
    return max(1, min(32, room // max(rows, columns)))


def panel(
    picture: Picture,
    x: float,
    y: float,
    cell: int,
    *,
    palette: Palette,
    numbers: bool = False,
) -> Markup:
    """Draw the cells of a picture with lines between them."""
    colours = picture.colours(palette)
    width, height = picture.columns * cell, picture.rows * cell
    parts: list[Markup] = []
    paths = _draw_runs(colours, picture.known, cell)
    if paths is None:
        parts.append(_draw_image(colours, width, height))
    else:
        parts.append(element("g", paths, shape_rendering="crispEdges"))
    if cell >= _MIN_CELL_WITH_LINES:
        lines = "".join(f"M0 {r * cell}h{width}" for r in range(picture.rows + 1))
        lines += "".join(f"M{c * cell} 0v{height}" for c in range(picture.columns + 1))
        parts.append(element("path", d=lines, stroke="#7a828c", stroke_opacity=".45"))
        parts += _cross_out_unknown(picture, cell)
    # Text in cells below 8 pixels could not be read.
    if numbers and cell >= 8:
        parts += _draw_numbers(picture, colours, cell)
    place = f"translate({format_number(x)} {format_number(y)})"
    return element("g", parts, transform=place)


def outline(
    cells: Bool[np.ndarray, "rows columns"], x: float, y: float, cell: int
) -> list[Markup]:
    """Frame each cell that is True.

    Two strokes, dark inside light, so that the frame is visible on every colour.
    """
    # Inside the cell, so that the frames of two neighbours do not cover each other.
    inset = max(cell // 8, 1)
    size = cell - 2 * inset
    number = format_number
    path = "".join(
        f"M{number(x + c * cell + inset)} {number(y + r * cell + inset)}"
        f"h{size}v{size}h-{size}z"
        for r, c in np.argwhere(cells).tolist()
    )
    return [
        element("path", d=path, fill="none", stroke="#fff", stroke_width=3),
        element("path", d=path, fill="none", stroke="#000", stroke_width=1),
    ]


def arrow(x: float, y: float) -> Markup:
    """Draw an arrow to the right, centred at (x, y)."""
    return element(
        "path",
        class_="fx-mark",
        fill="none",
        stroke="#1b1f24",
        stroke_width=2,
        stroke_linecap="round",
        stroke_linejoin="round",
        d=f"M{format_number(x - 18)} {format_number(y)}h36m-8 -7l8 7l-8 7",
    )


def document(
    width: float, height: float, title: str, description: str, body: Iterable[str]
) -> Markup:
    """Build an SVG document with an accessible title, a style and a background."""
    width, height = round(width), round(height)
    return element(
        "svg",
        element("title", title or description),
        element("desc", description),
        element("style", _STYLE),
        element(
            "rect", class_="fx-back", fill="#fff", width=width, height=height, rx=6
        ),
        body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=title or description,
    )


def _draw_runs(
    colours: UInt8[np.ndarray, "rows columns 3"],
    known: Bool[np.ndarray, "rows columns"],
    cell: int,
) -> list[Markup] | None:
    """Draw one path for each colour, made of the runs of each row.

    Unknown cells are left open, so that the page shows through in light and dark.
    """
    # Runs are found on one integer per cell instead of three bytes.
    packed = colours.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    starts = np.ones(packed.shape, bool)
    starts[:, 1:] = (packed[:, 1:] != packed[:, :-1]) | (known[:, 1:] != known[:, :-1])
    most = _MAX_RECTANGLES if known.all() else _MAX_RECTANGLES_WITH_HOLES
    if starts.sum() > most:
        return None
    paths: dict[int, list[str]] = {}
    for r, row in enumerate(packed.tolist()):
        edges = [*np.flatnonzero(starts[r]).tolist(), len(row)]
        for a, b in itertools.pairwise(edges):
            if known[r, a]:
                run = f"M{a * cell} {r * cell}h{(b - a) * cell}v{cell}H{a * cell}z"
                paths.setdefault(row[a], []).append(run)
    return [
        element("path", fill=f"#{colour:06x}", d="".join(runs))
        for colour, runs in sorted(paths.items())
    ]


def _draw_image(
    colours: UInt8[np.ndarray, "rows columns 3"], width: int, height: int
) -> Markup:
    data = base64.b64encode(encode_png(colours)).decode()
    return element(
        "image",
        width=width,
        height=height,
        # Without these two, viewers would blur the cells or keep the aspect ratio.
        preserveAspectRatio="none",
        style="image-rendering:pixelated",
        href=f"data:image/png;base64,{data}",
    )


def _cross_out_unknown(picture: Picture, cell: int) -> list[Markup]:
    # A stroke as well as a grey: the grey alone could be taken for a colour.
    if picture.known.all():
        return []
    half = format_number(cell / 2)
    path = "".join(
        f"M{format_number((c + 0.25) * cell)} {format_number((r + 0.75) * cell)}"
        f"l{half} -{half}"
        for r, c in np.argwhere(~picture.known).tolist()
    )
    return [element("path", d=path, stroke="#8b939d")]


def _draw_numbers(
    picture: Picture, colours: UInt8[np.ndarray, "rows columns 3"], cell: int
) -> list[Markup]:
    is_light = colours @ LUMA > LIGHT_ABOVE
    groups: list[Markup] = []
    for on_light, ink in ((True, "#000"), (False, "#fff")):
        texts: list[Markup] = []
        for r, c in np.argwhere((is_light == on_light) & picture.known).tolist():
            if text := picture.cell_text(r, c):
                # Digits are about 0.6 em wide, so this fits the text into its cell.
                size = min(cell * 0.6, 1.5 * cell / len(text))
                x, y = (c + 0.5) * cell, (r + 0.5) * cell + size * 0.35
                texts.append(element("text", text, x=x, y=y, font_size=size))
        if texts:
            groups.append(
                element(
                    "g", texts, fill=ink, text_anchor="middle", font_family="sans-serif"
                )
            )
    return groups
