"""Grids in a terminal: coloured cells, half blocks where room is short, or numbers.

Numbers where there is no colour: a pipe, `NO_COLOR`, a dumb terminal.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from ._palettes import Palette, check_palette
from ._picture import Picture, picture

# Dark to light, for pictures where there is no colour.
_SHADES = " .:-=+*#%@"
# Taller than this, and cells of a line each would scroll away what stands above.
_MOST_LINES = 32
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

_DIM = Style(dim=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Cells:
    """Lines for rich, ready as they are: as `Text`, a large grid takes far longer.

    Attributes:
        lines: each a list of (text, style).
    """

    lines: list[list[Segment]]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Segment]:
        for line in self.lines:
            yield from line
            yield Segment.line()

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        wide = max(sum(len(part.text) for part in line) for line in self.lines)
        return Measurement(wide, wide)


def log_grid_to_console(
    grid: npt.ArrayLike,
    title: str = "",
    *,
    mask: npt.ArrayLike | None = None,
    show_numbers: bool = False,
    palette: Palette = "arc",
    console: Console | None = None,
) -> None:
    """Print a grid to the terminal.

    In colour where the terminal has colours, as numbers elsewhere (also under
    `NO_COLOR`). What is wider than the terminal is cut off, and said.

    Args:
        grid: `(rows, columns)`, as in `grid_svg`; not inside jit, where `jax_log_grid`
            does this.
        title: any text; printed as it is.
        mask: which cells count, `(rows, columns)`; the others are shown as padding.
        show_numbers: numbers and colours. Other numbers than 0 to 9 stand in cells as
            wide as the longest, without colours; of several lanes, or a picture in
            colour, none are shown, and that is said.
        palette: as in `grid_svg`.
        console: where to; standard output if not given.

    Raises:
        TypeError: `grid` does not hold real numbers, or is being traced.
        ValueError: it is empty, the mask has another shape, or there is no such
            palette.
    """
    shown = picture(grid, mask)
    known = check_palette(palette)
    out = Console() if console is None else console
    note = ""
    if show_numbers and shown.kind == "ramp" and np.ndim(grid) == 2:
        cells = Cells(_written(np.asarray(grid), shown, out))
    else:
        cells = grid_cells(shown, out, palette=known, numbers=show_numbers)
        if show_numbers and shown.kind != "digits":
            note = "; numbers are shown of one grid without colours only"
    if title:
        out.print(Text(printable(title), style="bold"), soft_wrap=True)
    out.print(cells)
    out.print(Text(shown.described() + note, style="dim"), soft_wrap=True)


def grid_cells(
    shown: Picture,
    console: Console,
    *,
    palette: Palette,
    numbers: bool = False,
    width: int | None = None,
    lines: int = _MOST_LINES,
) -> Cells:
    """A picture as lines of text for this console.

    Args:
        shown: the picture.
        console: tells how wide the text may be, and whether it may be coloured.
        palette: colours of whole numbers.
        numbers: write the values even where there is colour.
        width: how wide the text may be, if not as wide as the console.
        lines: with more rows than this, two share a line where there is colour.
    """
    blind = console.color_system is None or console.no_color
    plain = not _can_show(console, "▀·…")
    if shown.kind != "digits":
        numbers = False
    width = console.width if width is None else width
    small = 2 * shown.columns <= width and shown.rows <= lines
    if blind:
        drawn = _without_colour(shown, width, plain=plain)
    elif numbers or plain or small:
        drawn = _cells(shown, width, palette, numbers=numbers, plain=plain)
    else:
        drawn = _half_blocks(shown, width, palette)
    return Cells(drawn)


def printable(text: str) -> str:
    """Text without what would move a terminal's cursor or change its colours."""
    return _CONTROL.sub(" ", text)


def _can_show(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _cells(
    shown: Picture, width: int, palette: Palette, *, numbers: bool, plain: bool
) -> list[list[Segment]]:
    """Two characters of background for each cell, which makes it about square."""
    colours = shown.colours(palette)
    light = colours @ np.array([0.2126, 0.7152, 0.0722]) > 140
    count, rest = _fitting(shown.columns, 2, width)
    pad = "." if plain else "·"
    lines: list[list[Segment]] = []
    for r in range(shown.rows):
        line: list[Segment] = []
        for c in range(count):
            if not shown.known[r, c]:
                line.append(Segment(pad * 2, _DIM))
                continue
            said = shown.said(r, c).rjust(2) if numbers else "  "
            ink = "black" if light[r, c] else "white"
            line.append(Segment(said, _style(ink, _hex(colours[r, c]))))
        lines.append(line)
    return lines + _cut(rest, "columns")


def _half_blocks(shown: Picture, width: int, palette: Palette) -> list[list[Segment]]:
    """Two rows in a line: the upper half of a character is ink, the lower is paper."""
    colours = shown.colours(palette)
    count, rest = _fitting(shown.columns, 1, width)
    lines: list[list[Segment]] = []
    for r in range(0, shown.rows, 2):
        line: list[Segment] = []
        for c in range(count):
            upper = _hex(colours[r, c])
            lower = _hex(colours[r + 1, c]) if r + 1 < shown.rows else None
            line.append(Segment("▀", _style(upper, lower)))
        lines.append(line)
    return lines + _cut(rest, "columns")


def _without_colour(shown: Picture, width: int, *, plain: bool) -> list[list[Segment]]:
    between = " " if 2 * shown.columns - 1 <= width else ""
    count, rest = _fitting(shown.columns, 1 + len(between), width + len(between))
    pad = "." if plain else "·"
    shades = np.array(list(_SHADES))
    if shown.kind == "digits":
        signs = shown.codes.astype("U1")
    elif shown.kind == "ramp":
        signs = shades[shown.codes.astype(int) * (len(shades) - 1) // 254]
    else:
        luma = shown.codes @ np.array([0.2126, 0.7152, 0.0722])
        signs = shades[(luma * (len(shades) - 1) // 255).astype(int)]
    signs = np.where(shown.known, signs, pad)
    return [[Segment(between.join(row[:count]))] for row in signs.tolist()] + _cut(
        rest, "columns"
    )


def _written(
    values: np.ndarray, shown: Picture, console: Console
) -> list[list[Segment]]:
    """The numbers themselves, in columns."""
    pad = "·" if _can_show(console, "·") else "."
    texts = [
        [f"{v:.6g}" if isinstance(v, float) else str(v) for v in row]
        for row in values.tolist()
    ]
    said = np.where(shown.known, np.array(texts), pad)
    each = max(map(len, said.ravel().tolist())) + 1
    count, rest = _fitting(shown.columns, each, console.width + 1)
    lines = [
        [Segment("".join(text.rjust(each) for text in row[:count])[1:])]
        for row in said.tolist()
    ]
    return lines + _cut(rest, "columns")


def _fitting(columns: int, each: int, width: int) -> tuple[int, int]:
    """How many columns are shown, and how many are not."""
    count = min(columns, max(width // each, 1))
    return count, columns - count


def _cut(rest: int, what: str) -> list[list[Segment]]:
    return [[Segment(f"... {rest} more {what}", _DIM)]] if rest else []


# As many pairs as any grid of ten colours has, and a few frames of other pictures.
@functools.lru_cache(maxsize=4096)
def _style(ink: str, paper: str | None) -> Style:
    return Style(color=ink, bgcolor=paper)


def _hex(colour: np.ndarray) -> str:
    return "#" + colour.tobytes().hex()
