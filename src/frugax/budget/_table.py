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
    widths = [max(map(_width, column)) for column in zip(head, *rows, strict=True)]
    lines = [list(head), ["-" * w for w in widths], *[list(r) for r in rows]]
    # Blanks at the ends of lines would fail doctests and clutter diffs.
    return "\n".join(
        "  ".join(
            c + " " * (w - _width(c)) for c, w in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def _width(text: str) -> int:
    """The number of terminal columns that a text takes.

    >>> _width("weight"), _width("重み"), _width("u\u0308")
    (6, 4, 1)
    """
    # Wide characters (CJK) take two columns; combining marks share their base's column.
    visible = [c for c in text if not unicodedata.combining(c)]
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in visible)
