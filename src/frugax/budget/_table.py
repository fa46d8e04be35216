"""Align cells in columns: the plain-text tables that plans and receipts print."""

import unicodedata
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns of text under their heads.

    Args:
        head: the column names.
        rows: the cells, one sequence a row, as many as there are heads.

    >>> print(table(["a", "b"], [["1", "x"], ["22", "y"]]))
    a   b
    --  -
    1   x
    22  y
    """
    cells = [[_one_line(c) for c in row] for row in (head, *rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = [cells[0], ["-" * w for w in widths], *cells[1:]]
    # Blanks at the ends of lines would fail doctests and clutter diffs.
    return "\n".join(
        "  ".join(
            c + " " * (w - _width(c)) for c, w in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def _one_line(text: str) -> str:
    r"""Escape what breaks a line or drives a terminal, as a name from a file may.

    >>> print(_one_line("a\nb \x1b[2J 重み"))
    a\nb \x1b[2J 重み
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _width(text: str) -> int:
    """The number of terminal columns that a text takes.

    >>> _width("weight"), _width("重み"), _width("u\u0308")
    (6, 4, 1)
    """
    # Wide characters (CJK) take two columns; combining marks share their base's column.
    visible = [c for c in text if not unicodedata.combining(c)]
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in visible)
