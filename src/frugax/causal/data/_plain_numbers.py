"""Understand how a column of a file writes its numbers, where all of it does the same.

A unit in each cell, decimal commas, marks between thousands, codes for missing values
and a line of units below the names. What may mean two things stays text, which whoever
needs a number refuses.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from frugax.budget import amount

from ._tables import WITH_UNIT, is_missing, parse_number

_MARKS = "'\u2019 \u00a0\u202f"  # between thousands, and nothing else
# A dot without a comma behind may be another country's decimal mark.
_DECIMAL_COMMA = re.compile(
    r"[-+]?(\d+(,\d+)?|\d{1,3}(\.\d{3}){2,}|\d{1,3}(\.\d{3})+,\d+)([eE][-+]?\d+)?"
)
_GROUPED_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?([eE][-+]?\d+)?")
_GROUPED_MARK = re.compile(rf"[-+]?\d{{1,3}}([{_MARKS}]\d{{3}})+([.,]\d+)?")
# What only a decimal comma, or only a comma between thousands, can be.
_IS_DECIMAL = re.compile(r".*,(\d{1,2}|\d{4,})([eE].*)?|[-+]?(0|\d{4,}),.*|.*\..*,.*")
_IS_GROUPED = re.compile(r".*,.*,.*|.*,.*\..*")
# Whole numbers that stand for a missing value in many files: -999, 9999, ...
_CODE = re.compile(r"-?9{2,}")
_SHORT_CODE = 99  # is a value more often


def plain_numbers(
    columns: Mapping[str, Sequence[str]], *, are_natural: bool
) -> tuple[dict[str, list[str]], list[str]]:
    """Write the numbers of each column as Python reads them.

    Args:
        columns: their cells by name.
        are_natural: whether nothing was set in any row, so that -999 and its like,
            beyond all others, are not values.

    Returns:
        The columns, and how each was understood that is written otherwise.
    """
    plain = {name: list(cells) for name, cells in columns.items()}
    notes: list[str] = []
    if _has_units_below(plain):
        units = [f"{name} in {cells[0]}" for name, cells in plain.items()]
        notes.append(f"line 2 has units: {', '.join(units):.200}")
        plain = {name: cells[1:] for name, cells in plain.items()}
    understood: dict[str, list[str]] = {}
    for name, cells in plain.items():
        present = [cell.strip() for cell in cells if not is_missing(cell)]
        if any(parse_number(cell) is None for cell in present):
            written, how = _understand(present)
            if any(parse_number(cell) is None for cell in written):
                continue
            rest = iter(written)
            plain[name] = [c if is_missing(c) else next(rest) for c in cells]
            understood.setdefault(how, []).append(name)
        numbers = [parse_number(cell) for cell in plain[name]]
        values = np.array([np.nan if x is None else x for x in numbers], float)
        for code, count in find_codes(values) if are_natural else ():
            if code == _SHORT_CODE:
                continue
            for row in np.flatnonzero(values == code):
                plain[name][row] = ""
            how = f"as missing where it is {code:g}, beyond all others"
            understood.setdefault(how, []).append(f"{name} ({amount(count, 'row')})")
    notes += [f"{', '.join(n):.200} read {how}" for how, n in understood.items()]
    return plain, notes


def _understand(cells: Sequence[str]) -> tuple[list[str], str]:
    """Return the numbers of cells that are all written alike, and how they are."""
    how: list[str] = []
    found = [WITH_UNIT.fullmatch(cell) for cell in cells]
    units = {f and (f["currency"] or f["unit"] or "") for f in found}
    unit = units.pop() if len(units) == 1 else None
    if unit and _is_unit(unit, cells):
        cells = [f["sign"] + f["number"] for f in found if f is not None]
        how.append(f"without {unit!r}")
    if any(map(_GROUPED_MARK.fullmatch, cells)):
        if all(
            _GROUPED_MARK.fullmatch(c) or parse_number(c.replace(",", ".")) is not None
            for c in cells
        ):
            cells = [re.sub(f"[{_MARKS}]", "", c).replace(",", ".") for c in cells]
            how.append("without marks between thousands")
    elif any("," in cell for cell in cells):
        is_decimal = any(map(_IS_DECIMAL.fullmatch, cells))
        if all(map(_DECIMAL_COMMA.fullmatch, cells)) and is_decimal:
            cells = [c.replace(".", "").replace(",", ".") for c in cells]
            how.append("with decimal commas")
        elif all(map(_GROUPED_COMMA.fullmatch, cells)) and any(
            map(_IS_GROUPED.fullmatch, cells)
        ):
            cells = [c.replace(",", "") for c in cells]
            how.append("with commas between thousands")
    return list(cells), " and ".join(how)


def _is_unit(unit: str, cells: Sequence[str]) -> bool:
    """Whether it is not the letter of a label, such as those of wells: 1A, 2A."""
    return len(unit) > 1 or not unit.isalpha() or all(" " in cell for cell in cells)


def _has_units_below(columns: Mapping[str, Sequence[str]]) -> bool:
    """Whether the first row has text where all others have numbers."""
    is_number = lambda cell: parse_number(cell) is not None
    if any(
        not c or (is_number(c[0]) and not is_missing(c[0])) for c in columns.values()
    ):
        return False
    below = [c for c in columns.values() if len(c) > 2 and all(map(is_number, c[1:]))]
    return bool(below) and all(not is_missing(cells[0]) for cells in below)


def find_codes(values: Float[np.ndarray, " n"]) -> list[tuple[float, int]]:
    """List ends of a column that repeat and that look like a code for missing values.

    Returns:
        Each with the number of its rows.
    """
    found: list[tuple[float, int]] = []
    seen = values[np.isfinite(values)]
    for end in (seen.min(), seen.max()) if len(seen) else ():
        others = seen[seen != end]
        count = len(seen) - len(others)
        if _CODE.fullmatch(f"{end:.0f}") and end == round(end) and count > 1:
            apart = np.abs(others - end).min(initial=np.inf)
            if np.ptp(others) < apart < np.inf:
                found.append((float(end), count))
    return found
