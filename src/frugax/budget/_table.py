"""Plain-text tables: what plans and receipts print."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, aligned, under their heads.

    Args:
        head: the column names.
        rows: the cells, one sequence a row, as many as there are heads.

    >>> print(table(["a", "b"], [["1", "x"], ["22", "y"]]))
    a   b
    --  -
    1   x
    22  y
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [list(head), ["-" * w for w in widths], *[list(r) for r in rows]]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
