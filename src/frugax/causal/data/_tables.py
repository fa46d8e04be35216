"""Parse data frames and dicts for `Samples`; errors name column and row."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

# Marks of missing values in files and spreadsheets.
_MISSING = {"", "na", "n/a", "nan", "null", "none", "<na>", "nat", "#n/a", "#na"}
_MISSING |= {"?", ".", "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!"}
# Marks of a row without intervention in an intervention column.
_NO_INTERVENTION = {*_MISSING, "-", "observational", "observation", "obs", "control"}
_SWITCHES = {"true": 1.0, "false": 0.0}
# A number with a mark between groups of three digits, and perhaps a decimal mark.
GROUPED = re.compile(
    r"[-+]?\d{1,3}(?P<mark>[,.'’ \u00a0\u202f])\d{3}(?:(?P=mark)\d{3})*"
    r"(?P<rest>(?!(?P=mark))[,.]\d+)?"
)
# A number with a currency before it, or a unit behind. 2x10^3 is not 2 of a unit.
WITH_UNIT = re.compile(
    r"(?P<sign>[-+]?)(?P<currency>[$€£¥]?)\s*"
    r"(?P<number>[-+]?\d(?:[\d.,'’ \u00a0\u202f]*\d)?(?:[eE][-+]?\d+)?)\s*"
    r"(?P<unit>(?![dDxX×][-+]?\d)(?:[^\W\d_]|[%°‰$€£¥])\S*)?"
)
_MAX_NAMES = 12  # of a column that may be a category
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}(?:[ T].*)?")
# Below this many float32 steps per standard deviation, rounding adds more than 1 %.
FLOAT32_STEPS = 30


def arrays_from_frame(
    frame: Any,
    intervened: Any = None,
    variables: Sequence[str] | None = None,
    levels: Mapping[str, Sequence[str]] | None = None,
) -> tuple[tuple[str, ...], Float[np.ndarray, "n d"], Bool[np.ndarray, "n d"]]:
    """Convert named columns to variables, values and the mask of interventions."""
    names = _column_names(frame)
    if isinstance(intervened, str):
        marks = [intervened]
    elif isinstance(intervened, Mapping):
        marks = [str(mark) for mark in intervened.values()]
    else:
        marks = []
    if variables is None:
        variables = [name for name in names if name not in marks]
    for name in (*variables, *marks):
        if name not in names:
            raise ValueError(
                f"the table has no column {name!r}, only {', '.join(names):.200}."
            )
    if not variables:
        raise ValueError("no column is left for a variable: name some in variables=.")
    levels = levels or {}
    for name in levels:
        if name not in variables:
            raise ValueError(f"levels has {name!r}, which is not a variable.")
    columns = [_numbers(frame[name], name, levels.get(name, ())) for name in variables]
    n = len(columns[0])
    for name, column in zip(variables, columns, strict=True):
        if len(column) != n:
            raise ValueError(
                f"{name!r} has {len(column)} rows and {variables[0]!r} has {n}."
            )
    values = np.stack(columns, 1)
    mask = np.zeros(values.shape, bool)
    if isinstance(intervened, str):
        cells = _cells(frame[intervened])
        _check_length(cells, n, intervened)
        for row, cell in enumerate(cells):
            for name in _parse_targets(cell, variables, f"{intervened!r}, row {row}"):
                mask[row, variables.index(name)] = True
    elif isinstance(intervened, Mapping):
        for name, mark in intervened.items():
            if name not in variables:
                raise ValueError(f"intervened has {name!r}, which is not a variable.")
            flags = _flags(frame[mark], mark)
            _check_length(flags, n, mark)
            mask[:, variables.index(name)] = flags
    elif intervened is not None:
        given = np.asarray(intervened)
        if given.shape != values.shape or given.dtype != bool:
            raise ValueError(
                f"intervened must be bool of shape {values.shape}, not "
                f"{given.dtype} of {given.shape}."
            )
        mask[:] = given
    return tuple(variables), as_float32(values, variables), mask


def as_float32(
    values: np.ndarray, variables: Sequence[str]
) -> Float[np.ndarray, "n d"]:
    """Convert float64 values `(n, d)` to float32, without losing their differences."""
    # Values that are too large become infinite; the loop names their column and row.
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    for name, column, kept in zip(variables, values.T, narrow.T, strict=True):
        too_large = np.isinf(kept) & np.isfinite(column)
        if too_large.any():
            row = int(np.flatnonzero(too_large)[0])
            raise ValueError(
                f"{name!r} is {column[row]:g} in row {row}, too large for float32: "
                "give it in a larger unit."
            )
        known = column[np.isfinite(column)]
        if not len(known):
            continue
        # The rounding itself is measured: whole numbers far from 0 may be exact.
        rounded = kept[np.isfinite(column)].astype(np.float64) - known
        # Scaled first: squares of the largest and smallest float64 values would
        # overflow or underflow. A constant column has no differences to lose.
        size = np.abs(known).max() or 1.0
        spread = np.std(known / size - (known / size).mean())
        # Rounding to steps of h has an error of standard deviation h / sqrt(12).
        if spread > 0 and np.std(rounded / size) > spread / FLOAT32_STEPS / 12**0.5:
            why, remedy = (
                "far from 0",
                "subtract a constant, for example its mean, first",
            )
            if size < np.finfo(np.float32).tiny:
                why, remedy = "small", "give it in a smaller unit"
            raise ValueError(
                f"{name!r} is so {why} that float32 loses what its values differ by "
                f"(mean {known.mean():g}, spread {spread * size:.3g}): {remedy}."
            )
    return narrow


def _column_names(frame: Any) -> list[str]:
    """Return the names of the columns."""
    # Lazy frames of polars and narwhals are recipes without values.
    if hasattr(frame, "collect") and not hasattr(frame, "to_numpy"):
        raise TypeError("this frame is lazy: give frame.collect().")
    if isinstance(frame, Mapping):
        names = list(frame)
    elif hasattr(frame, "column_names"):  # pyarrow: its `columns` are the data
        names = list(frame.column_names)
    elif hasattr(frame, "columns"):
        names = list(frame.columns)
    else:
        raise TypeError(
            f"a table needs named columns, and {type(frame).__name__} has none: give a "
            "data frame or a dict, or Samples.observed(names, array)."
        )
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"column {name!r} has no text as its name: rename it.")
        if names.count(name) > 1:
            raise ValueError(f"two columns are called {name!r}: rename one.")
    return names


def _cells(column: Any) -> list[Any]:
    """Convert a column to a list of Python objects."""
    # In turn the names of polars and pandas, of pyarrow, and of NumPy.
    for method in ("to_list", "to_pylist", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _numbers(
    column: Any, name: str, levels: Sequence[str] = ()
) -> Float[np.ndarray, " n"]:
    """Convert a column to numbers, NaN if missing; levels become 0, 1, ... in order."""
    if np.ndim(column) != 1:
        raise ValueError(f"{name!r} is not a column: it needs one value for each row.")
    # An array of numbers needs no loop over its cells in Python.
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return np.ma.filled(column.astype(np.float64), np.nan)
    if isinstance(column, np.ndarray) and column.dtype.kind in "mM":
        raise ValueError(f"{name!r} holds dates or times: give them as numbers.")
    cells = _cells(column)
    numbers = np.empty(len(cells))
    for row, cell in enumerate(cells):
        number = parse_number(cell)
        if levels and not is_missing(cell):
            number = None
            if str(cell).strip() in levels:
                number = float(list(levels).index(str(cell).strip()))
        if number is None:
            known = f", not one of {', '.join(levels):.200}" if levels else ""
            raise ValueError(
                f"{name!r} is not a number in row {row}: {cell!r:.60}{known}. "
                f"{suggest_number(str(cell)) or _suggest_levels(cells, name)}"
            )
        numbers[row] = number
    return numbers


def suggest_number(text: str) -> str:
    """Suggest how to write a number with a comma or a unit; empty for other text."""
    text = text.strip()
    if text[:1] in ("<", ">"):
        return (
            "A value beyond what can be measured is missing: leave its cell empty, or "
            "write the limit as a number."
        )
    value, _, error = re.sub(r"\+/?-", "±", text).partition("±")
    if error and parse_number(value) is not None:
        return f"Write {value.strip()!r} alone; errors of single values are not read."
    if (grouped := GROUPED.fullmatch(text)) is not None:
        mark, rest = grouped["mark"], grouped["rest"] or ""
        whole = text.removesuffix(rest).replace(mark, "") + rest.replace(",", ".")
        if mark == "," and not rest and text.count(",") == 1:
            # One and a half thousand in one country, one and a half in another.
            point = text.replace(",", ".")
            return f"Write {whole!r} if the comma groups thousands, or else {point!r}."
        return f"Write it without {mark!r} between thousands: {whole!r}."
    point = text.replace(",", ".")
    if text.count(",") == 1 and parse_number(point) is not None:
        return f"For a decimal number write {point!r}."
    found = WITH_UNIT.fullmatch(text)
    if found is None or not (found["unit"] or found["currency"]):
        return ""
    number = found["sign"] + found["number"]
    if parse_number(number) is None:
        return suggest_number(number)
    return f"Write {number!r} alone, and the unit in the column's name."


def _suggest_levels(cells: Sequence[Any], name: str) -> str:
    """Suggest what to do with a column that has other text than numbers."""
    names = list(dict.fromkeys(str(c).strip() for c in cells if not is_missing(c)))
    if any(hasattr(cell, "isoformat") for cell in cells) or all(
        map(_DATE.fullmatch, names)
    ):
        return "It holds dates or times: give them as numbers, or leave it out."
    if 1 < len(names) <= _MAX_NAMES and all(parse_number(n) is None for n in names):
        return (
            f"If its {len(names)} names have an order, state it, such as levels="
            f"{{{name!r}: {names!r}}}; otherwise give a column of 0 and 1 for each, or "
            "leave the column out."
        )
    return (
        "Leave the column out, remove the row if it holds no values, or leave the cell "
        "empty if its value is missing."
    )


def _flags(column: Any, name: str) -> list[bool]:
    """Convert a column to booleans."""
    words = {"true": True, "1": True, "1.0": True, "false": False, "0": False}
    words |= {"0.0": False}
    flags = [words.get(str(cell).strip().lower()) for cell in _cells(column)]
    if None in flags:
        row = flags.index(None)
        raise ValueError(f"{name!r} is neither true nor false in row {row}.")
    return [flag is True for flag in flags]


def parse_number(cell: Any) -> float | None:
    """Parse a cell: NaN if it is missing, None if it is not a number."""
    if is_missing(cell):
        return math.nan
    if isinstance(cell, str):
        # Python reads 1_000 as a number; in a table it is more likely a name.
        if "_" in cell:
            return None
        cell = cell.strip().replace("\u2212", "-")  # typeset minus signs
        cell = _SWITCHES.get(cell.lower(), cell)  # as pandas writes booleans
    try:
        return float(cell)
    except OverflowError:
        return math.inf  # `Samples` reports its row
    except (TypeError, ValueError):
        return None


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, a text for a missing value, or a mark of pandas."""
    # Compared by name: pandas.NA neither equals itself nor converts to a bool.
    if cell is None or type(cell).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(cell, str) and cell.strip().lower() in _MISSING


def _parse_targets(cell: Any, variables: Sequence[str], where: str) -> Iterable[str]:
    """Parse the variables in a cell of an intervention column."""
    if is_missing(cell) or (isinstance(cell, float) and math.isnan(cell)):
        return []
    text = str(cell).strip()
    if text in variables:
        return [text]
    if text.lower() in _NO_INTERVENTION:
        return []
    names = [part.strip() for part in text.replace(";", ",").split(",")]
    for name in names:
        if name not in variables:
            raise ValueError(
                f"{where}: {name!r:.60} is not a variable. The column names the "
                f"changed variables, of {', '.join(variables):.200}; separate several "
                "with a comma; leave it empty for none."
            )
    return names


def _check_length(column: Sequence[Any] | np.ndarray, n: int, name: str) -> None:
    """Raise unless a column has `n` rows."""
    if len(column) != n:
        raise ValueError(f"{name!r} has {len(column)} rows and the variables {n}.")


def counts_rows(cells: Sequence[str], *, least: int = 5) -> bool:
    """Return whether at least so many cells are 0, 1, 2 ... or 1, 2, 3 ..."""
    numbers = [parse_number(cell) for cell in cells]
    return len(cells) >= least and numbers in (
        [*range(len(cells))],
        [*range(1, len(cells) + 1)],
    )
