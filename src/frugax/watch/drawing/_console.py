"""Print 2-D arrays in a terminal: coloured cells, half blocks if large, or characters.

Terminals without colour (a pipe, `NO_COLOR`, a dumb terminal) get digits where all
values are whole numbers from 0 to 9, and shades of ASCII characters elsewhere.
"""

import functools
import re

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment, SegmentLines
from rich.style import Style
from rich.text import Text

from ._palettes import LIGHT_ABOVE, LUMA, Palette, check_palette
from ._picture import Picture, make_picture

# Dark to light, for pictures on terminals without colour.
_SHADES = " .:-=+*#%@"
# Taller grids get two rows per line, or the output above would scroll away.
_MAX_LINES = 32
# C0, DEL and C1: a name from a journal must not be able to send an escape sequence.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

_DIM = Style(dim=True)


# Segments instead of rich's `Text`, whose wrapping takes far longer for large grids.
class CellLines(SegmentLines):
    """Lines that rich prints as they are, and that take as much room as they need."""

    def __init__(self, lines: list[list[Segment]]) -> None:
        super().__init__(lines, new_lines=True)

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        width = max(sum(len(part.text) for part in line) for line in self.lines)
        return Measurement(width, width)


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

    In colour where the terminal has colours; elsewhere, also under `NO_COLOR`, as
    digits or ASCII shades. A grid wider than the terminal is cut off, with a remark.

    Args:
        grid: `(rows, columns)`, as in `grid_svg`; not inside jit, where `jax_log_grid`
            does the same.
        title: any text; printed as it is.
        mask: the known cells, `(rows, columns)`; the others are shown as padding.
        show_numbers: print numbers as well as colours. Numbers other than 0 to 9 are
            printed without colours, in columns as wide as the longest. Several lanes
            and colour images are printed without numbers, with a remark.
        palette: as in `grid_svg`.
        console: the console; by default standard output.

    Raises:
        TypeError: `grid` does not hold real numbers, or is being traced.
        ValueError: `grid` is empty, the mask has another shape, or the palette is
            unknown.
    """
    picture = make_picture(grid, mask)
    known = check_palette(palette)
    out = console or Console()
    note = ""
    if show_numbers and picture.kind == "ramp" and np.ndim(grid) == 2:
        cells = CellLines(_number_columns(np.asarray(grid), picture, out))
    else:
        cells = picture_cells(picture, out, palette=known, numbers=show_numbers)
        if show_numbers and picture.kind != "digits":
            note = "; only a single grid without colours is shown with numbers"
    if title:
        out.print(Text(escape_controls(title), style="bold"), soft_wrap=True)
    out.print(cells)
    out.print(Text(picture.describe() + note, style="dim"), soft_wrap=True)


def picture_cells(
    picture: Picture,
    console: Console,
    *,
    palette: Palette,
    numbers: bool = False,
    width: int | None = None,
    lines: int = _MAX_LINES,
) -> CellLines:
    """Draw a picture as lines of text.

    Args:
        picture: the picture.
        console: the console, for its width and its colours.
        palette: the colours of whole numbers.
        numbers: write the values even where there is colour.
        width: the width of the text; by default that of the console.
        lines: above this many rows, two share a line where there is colour.
    """
    is_monochrome = console.color_system is None or console.no_color
    ascii_only = not _can_encode(console, "▀·…")
    if picture.kind != "digits":
        numbers = False
    if width is None:
        width = console.width
    small = 2 * picture.columns <= width and picture.rows <= lines
    if is_monochrome:
        drawn = _monochrome_cells(picture, width, ascii_only=ascii_only)
    elif numbers or ascii_only or small:
        drawn = _coloured_cells(
            picture, width, palette, numbers=numbers, ascii_only=ascii_only
        )
    else:
        drawn = _half_blocks(picture, width, palette)
    return CellLines(drawn)


def escape_controls(text: str) -> str:
    """Replace control characters, which could move the cursor or change colours."""
    return _CONTROL.sub(" ", text)


def _can_encode(console: Console, text: str) -> bool:
    # Consoles with a legacy code page lack block characters, and would raise.
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _coloured_cells(
    picture: Picture, width: int, palette: Palette, *, numbers: bool, ascii_only: bool
) -> list[list[Segment]]:
    """Draw each cell as two characters of background, which is about square."""
    # Coloured backgrounds need no font glyphs, so they look alike on all terminals.
    colours = picture.colours(palette)
    is_light = colours @ LUMA > LIGHT_ABOVE
    count, rest = _fit_columns(picture.columns, 2, width)
    pad = "." if ascii_only else "·"
    lines: list[list[Segment]] = []
    for r in range(picture.rows):
        line: list[Segment] = []
        for c in range(count):
            if not picture.known[r, c]:
                line.append(Segment(pad * 2, _DIM))
                continue
            text = "  "
            if numbers:
                text = picture.cell_text(r, c).rjust(2)
            ink = "black" if is_light[r, c] else "white"
            line.append(Segment(text, _style(ink, _to_hex(colours[r, c]))))
        lines.append(line)
    return lines + _cut_note(rest)


def _half_blocks(picture: Picture, width: int, palette: Palette) -> list[list[Segment]]:
    """Draw two rows per line, one in each half of the character "▀"."""
    colours = picture.colours(palette)
    count, rest = _fit_columns(picture.columns, 1, width)
    lines: list[list[Segment]] = []
    for r in range(0, picture.rows, 2):
        line: list[Segment] = []
        for c in range(count):
            upper = _to_hex(colours[r, c])
            lower = None
            if r + 1 < picture.rows:
                lower = _to_hex(colours[r + 1, c])
            line.append(Segment("▀", _style(upper, lower)))
        lines.append(line)
    return lines + _cut_note(rest)


def _monochrome_cells(
    picture: Picture, width: int, *, ascii_only: bool
) -> list[list[Segment]]:
    between = ""
    if 2 * picture.columns - 1 <= width:
        between = " "
    count, rest = _fit_columns(picture.columns, 1 + len(between), width + len(between))
    pad = "." if ascii_only else "·"
    # Luma has 256 levels and the ramp 255; both are scaled to the ten shades.
    shades = np.array(list(_SHADES))
    if picture.kind == "digits":
        signs = picture.codes.astype("U1")
    elif picture.kind == "ramp":
        signs = shades[picture.codes.astype(int) * (len(shades) - 1) // 254]
    else:
        luma = picture.codes @ LUMA
        signs = shades[(luma * (len(shades) - 1) // 255).astype(int)]
    signs = np.where(picture.known, signs, pad)
    lines = [[Segment(between.join(row[:count]))] for row in signs.tolist()]
    return lines + _cut_note(rest)


def _number_columns(
    values: np.ndarray, picture: Picture, console: Console
) -> list[list[Segment]]:
    """Print the numbers themselves, right-aligned."""
    pad = "·" if _can_encode(console, "·") else "."
    texts = [
        [f"{v:.6g}" if isinstance(v, float) else str(v) for v in row]
        for row in values.tolist()
    ]
    # One width for all columns, so that a number stands below its neighbour.
    shown = np.where(picture.known, np.array(texts), pad)
    each = max(map(len, shown.ravel().tolist())) + 1
    count, rest = _fit_columns(picture.columns, each, console.width + 1)
    lines = [
        [Segment("".join(text.rjust(each) for text in row[:count])[1:])]
        for row in shown.tolist()
    ]
    return lines + _cut_note(rest)


def _fit_columns(columns: int, each: int, width: int) -> tuple[int, int]:
    """Return how many columns fit, and how many do not."""
    count = min(columns, max(width // each, 1))
    return count, columns - count


def _cut_note(rest: int) -> list[list[Segment]]:
    if not rest:
        return []
    return [[Segment(f"... {rest} more columns", _DIM)]]


# Ten colours make at most 121 pairs; the rest serves a few frames of colour images.
@functools.lru_cache(maxsize=4096)
def _style(ink: str, paper: str | None) -> Style:
    return Style(color=ink, bgcolor=paper)


def _to_hex(colour: np.ndarray) -> str:
    return "#" + colour.tobytes().hex()
