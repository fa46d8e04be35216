"""The few SVG elements that the drawings are made of.

Colours stand twice: as attributes, for programs that read no style sheet and for pages
whose policy forbids one, and as classes, which follow the reader's light or dark. The
classes begin with `fx-`, so that a page may hold many drawings and a style of its own.
"""

import base64
import itertools

import numpy as np

from frugax.report import escape

from ._palettes import Palette
from ._picture import Picture
from ._png import png

# No colour is told from its neighbours by a line when cells are smaller than this.
_SMALLEST_WITH_LINES = 5
# Beyond this many rectangles a PNG inside the SVG is smaller, and much quicker to draw.
_MOST_RECTANGLES = 6000

STYLE = (
    ".fx-back{fill:#fff}.fx-ink{fill:#1b1f24}.fx-soft{fill:#5b6470}"
    ".fx-mark{stroke:#1b1f24}.fx-text{font:13px system-ui,'Segoe UI',Helvetica,Arial,"
    "sans-serif}.fx-title{font-size:15px;font-weight:600}"
    "@media(prefers-color-scheme:dark){.fx-back{fill:#1b1f24}.fx-ink{fill:#e7e9ec}"
    ".fx-soft{fill:#9aa4b0}.fx-mark{stroke:#e7e9ec}}"
)
# Of a letter, on average: text is not measured here.
_LETTER = {"title": 8.4, "": 7.0}


def label(
    x: float,
    y: float,
    text: str,
    *,
    ink: str = "soft",
    size: str = "",
    middle: bool = False,
) -> str:
    """A line of text with its left end, or its middle, at `x`."""
    colour = {"ink": "#1b1f24", "soft": "#5b6470"}[ink]
    heavy = ' font-weight="600"' if size == "title" else ""
    return (
        f'<text class="fx-text fx-{ink}{" fx-" + size if size else ""}" x="{x:g}" '
        f'y="{y:g}" fill="{colour}" font-family="sans-serif" '
        f'font-size="{15 if size == "title" else 13}"{heavy}'
        f"{_MIDDLE if middle else ''}>{escape(text)}</text>"
    )


_MIDDLE = ' text-anchor="middle"'


def width_of(text: str, size: str = "") -> float:
    """About how wide a text will be, in pixels."""
    return len(text) * _LETTER[size]


def shortened(text: str, width: float, size: str = "") -> str:
    """The text, cut where it would be wider."""
    most = max(int(width / _LETTER[size]), 1)
    return text if len(text) <= most else text[: most - 1] + "…"


def cell_size(rows: int, columns: int, *, room: int) -> int:
    """How many pixels a cell should have: whole ones, or edges would blur."""
    return max(1, min(32, room // max(rows, columns)))


def panel(
    shown: Picture, x: float, y: float, cell: int, *, palette: Palette, numbers: bool
) -> str:
    """A picture's cells with lines between them.

    Args:
        shown: the picture.
        x: left edge.
        y: upper edge.
        cell: pixels of a cell.
        palette: colours of whole numbers.
        numbers: write each cell's value into it.
    """
    colours = shown.colours(palette)
    wide, high = shown.columns * cell, shown.rows * cell
    parts = [f'<g transform="translate({x:g} {y:g})">']
    paths, count = _runs(colours, shown.known, cell)
    if count > _MOST_RECTANGLES:
        parts.append(_image(colours, wide, high))
    else:
        parts.append(f'<g shape-rendering="crispEdges">{paths}</g>')
    if cell >= _SMALLEST_WITH_LINES:
        lines = "".join(f"M0 {r * cell}h{wide}" for r in range(shown.rows + 1))
        lines += "".join(f"M{c * cell} 0v{high}" for c in range(shown.columns + 1))
        parts.append(f'<path d="{lines}" stroke="#7a828c" stroke-opacity=".45"/>')
        parts.append(_crosses(shown, cell))
    if numbers and cell >= 8:
        parts.append(_numbers(shown, colours, cell))
    return "".join(parts) + "</g>"


def outline(cells: np.ndarray, x: float, y: float, cell: int) -> str:
    """A frame around each cell that is True, `(rows, columns)`.

    Two strokes, dark inside light, so that it is seen on every colour.
    """
    inset = max(cell // 8, 1)
    size = cell - 2 * inset
    path = "".join(
        f"M{x + c * cell + inset:g} {y + r * cell + inset:g}h{size}v{size}h-{size}z"
        for r, c in np.argwhere(cells).tolist()
    )
    light = f'<path d="{path}" fill="none" stroke="#fff" stroke-width="3"/>'
    return light + f'<path d="{path}" fill="none" stroke="#000" stroke-width="1"/>'


def document(
    width: float, height: float, title: str, description: str, body: str
) -> str:
    """An SVG document: a title that is read aloud, a style, a background, the rest."""
    said = escape(title or description)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{said}">'
        f"<title>{said}</title><desc>{escape(description)}</desc>"
        f"<style>{STYLE}</style>"
        f'<rect class="fx-back" fill="#fff" width="{width:g}" height="{height:g}" '
        f'rx="6"/>{body}</svg>\n'
    )


def _runs(colours: np.ndarray, known: np.ndarray, cell: int) -> tuple[str, int]:
    """One path for each colour, made of each row's runs of it; and how many runs.

    What is not known is left open: the page shows through, light or dark.
    """
    packed = colours.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    starts = np.ones(packed.shape, bool)
    starts[:, 1:] = (packed[:, 1:] != packed[:, :-1]) | (known[:, 1:] != known[:, :-1])
    if starts.sum() > _MOST_RECTANGLES:
        return "", int(starts.sum())
    paths: dict[int, list[str]] = {}
    for r, row in enumerate(packed.tolist()):
        at = [*np.flatnonzero(starts[r]).tolist(), len(row)]
        for a, b in itertools.pairwise(at):
            if not known[r, a]:
                continue
            run = f"M{a * cell} {r * cell}h{(b - a) * cell}v{cell}H{a * cell}z"
            paths.setdefault(row[a], []).append(run)
    drawn = "".join(
        f'<path fill="#{colour:06x}" d="{"".join(runs)}"/>'
        for colour, runs in sorted(paths.items())
    )
    return drawn, int(starts.sum())


def _image(colours: np.ndarray, wide: int, high: int) -> str:
    data = base64.b64encode(png(colours)).decode()
    return (
        f'<image width="{wide}" height="{high}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _crosses(shown: Picture, cell: int) -> str:
    """A stroke through each cell that is not known: its grey alone says too little."""
    if shown.known.all():
        return ""
    inset = cell / 4
    path = "".join(
        f"M{c * cell + inset:g} {(r + 1) * cell - inset:g}l{cell / 2:g} {-cell / 2:g}"
        for r, c in np.argwhere(~shown.known).tolist()
    )
    return f'<path d="{path}" stroke="#8b939d"/>'


def _numbers(shown: Picture, colours: np.ndarray, cell: int) -> str:
    # Rec. 709 luma: black letters on what is light, white on what is dark.
    light = colours @ np.array([0.2126, 0.7152, 0.0722]) > 140
    parts: list[str] = []
    for bright, ink in ((True, "#000"), (False, "#fff")):
        written: list[str] = []
        for r, c in np.argwhere((light == bright) & shown.known).tolist():
            if said := shown.said(r, c):
                x, y = (c + 0.5) * cell, (r + 0.5) * cell
                size = min(cell * 0.6, 1.5 * cell / len(said))
                written.append(
                    f'<text x="{x:g}" y="{y + size * 0.35:.3g}" '
                    f'font-size="{size:.3g}">{said}</text>'
                )
        if written:
            parts.append(
                f'<g fill="{ink}" text-anchor="middle" '
                f'font-family="sans-serif">{"".join(written)}</g>'
            )
    return "".join(parts)
