"""Frames of pandas, polars, narwhals or pyarrow, or a dict of columns, as arrays.

Reads: anything with named columns; none of these packages is imported. Gives: names,
values and what was intervened on. The table itself: `_samples.py`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

# What files and spreadsheets write where a value is missing.
_MISSING = {"", "na", "n/a", "nan", "null", "none", "<na>", "nat"}
# What an intervention column may say where nothing was changed.
_NOTHING = {*_MISSING, "-", "observational", "observation", "obs", "control"}
# A spread of fewer steps of float32 than this would have some 1 % of it from rounding.
FLOAT32_STEPS = 30


def arrays_of(
    frame: Any,
    intervened: Any = None,
    variables: Sequence[str] | None = None,
) -> tuple[tuple[str, ...], Float[np.ndarray, "n d"], Bool[np.ndarray, "n d"]]:
    """The variables of a frame, their values, and which of them were intervened on.

    Args:
        frame: the columns.
        intervened: see `Samples.from_frame`.
        variables: the columns to take; all by default.

    Raises:
        TypeError: it has no columns, or is lazy.
        ValueError: a column is missing, is no numbers, or is longer than another.
    """
    names = _columns(frame)
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
    columns = [_numbers(frame[name], name) for name in variables]
    n = len(columns[0])
    for name, column in zip(variables, columns, strict=True):
        if len(column) != n:
            raise ValueError(
                f"{name!r} has {len(column)} rows and {variables[0]!r} has {n}."
            )
    values = np.stack(columns, 1)
    changed = np.zeros(values.shape, bool)
    if isinstance(intervened, str):
        cells = _cells(frame[intervened])
        _check_length(cells, n, intervened)
        for row, cell in enumerate(cells):
            for name in _named(cell, variables, f"{intervened!r}, row {row}"):
                changed[row, variables.index(name)] = True
    elif isinstance(intervened, Mapping):
        for name, mark in intervened.items():
            if name not in variables:
                raise ValueError(f"intervened has {name!r}, which is no variable.")
            flags = _flags(frame[mark], mark)
            _check_length(flags, n, mark)
            changed[:, variables.index(name)] = flags
    elif intervened is not None:
        given = np.asarray(intervened)
        if given.shape != values.shape or given.dtype != bool:
            raise ValueError(
                f"intervened must be bool of shape {values.shape}, not "
                f"{given.dtype} of {given.shape}."
            )
        changed[:] = given
    return tuple(variables), as_float32(values, variables), changed


def as_float32(
    values: np.ndarray, variables: Sequence[str]
) -> Float[np.ndarray, "n d"]:
    """Values as a table keeps them.

    Args:
        values: `(n, d)`, float64.
        variables: names of the columns.

    Raises:
        ValueError: a value is too large for float32, or a column is so small or so far
            from 0 that float32 loses what its values differ by.
    """
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
        rounded = kept[np.isfinite(column)].astype(np.float64) - known
        # A constant column has nothing to lose. Scaled, as squares of the largest and
        # smallest values would leave the range of float64.
        size = np.abs(known).max() or 1.0
        spread = np.std(known / size - (known / size).mean())
        if spread > 0 and np.std(rounded / size) > spread / FLOAT32_STEPS / 12**0.5:
            small = size < np.finfo(np.float32).tiny
            why = "small" if small else "far from 0"
            raise ValueError(
                f"{name!r} is so {why} that float32 loses what its values differ by "
                f"(mean {known.mean():g}, spread {spread * size:.3g}): "
                + (
                    "give it in a smaller unit."
                    if small
                    else "subtract a constant, for example its mean, first."
                )
            )
    return narrow


def _columns(frame: Any) -> list[str]:
    """The names of the columns.

    Raises:
        TypeError: there are none, or the frame is lazy.
        ValueError: a name is given twice.
    """
    if hasattr(frame, "collect") and not hasattr(frame, "to_numpy"):
        raise TypeError("this frame is lazy: give frame.collect().")
    if isinstance(frame, Mapping):
        names = list(frame)
    elif hasattr(frame, "column_names"):  # pyarrow, whose `columns` are the data
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
    """A column as Python objects."""
    for way in ("to_list", "to_pylist", "tolist"):
        if hasattr(column, way):
            return list(getattr(column, way)())
    return list(column)


def _numbers(column: Any, name: str) -> Float[np.ndarray, " n"]:
    """A column as numbers, NaN where one is missing.

    Raises:
        ValueError: a cell is no number, or this is no column.
    """
    if np.ndim(column) != 1:
        raise ValueError(f"{name!r} is no column: it needs one value for each row.")
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return column.astype(np.float64)
    if isinstance(column, np.ndarray) and column.dtype.kind in "mM":
        raise ValueError(f"{name!r} holds dates or times: give them as numbers.")
    cells = _cells(column)
    numbers = np.empty(len(cells))
    for row, cell in enumerate(cells):
        number = _number(cell)
        if number is None:
            raise ValueError(
                f"{name!r} is no number in row {row}: {cell!r:.60}. Leave the column "
                "out with variables=, or mark what is missing with NaN."
            )
        numbers[row] = number
    return numbers


def _flags(column: Any, name: str) -> list[bool]:
    """A column as booleans.

    Raises:
        ValueError: a cell is neither true nor false.
    """
    words = {"true": True, "1": True, "1.0": True, "false": False, "0": False}
    words |= {"0.0": False}
    flags = [words.get(str(cell).strip().lower()) for cell in _cells(column)]
    if None in flags:
        row = flags.index(None)
        raise ValueError(f"{name!r} is neither true nor false in row {row}.")
    return [flag is True for flag in flags]


def _number(cell: Any) -> float | None:
    """A cell as a number, NaN where it is missing; None where it is neither."""
    if _is_missing(cell):
        return math.nan
    # Python reads 1_000 as a number; in a table it is more likely a name.
    if isinstance(cell, str) and "_" in cell:
        return None
    try:
        return float(cell)
    except OverflowError:
        return math.inf  # `Samples` says where it stands
    except (TypeError, ValueError):
        return None


def _is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: None, text that says so, or pandas' own marks."""
    # Compared by name, as pandas.NA neither equals itself nor has a truth.
    if cell is None or type(cell).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(cell, str) and cell.strip().lower() in _MISSING


def _named(cell: Any, variables: Sequence[str], where: str) -> Iterable[str]:
    """The variables that a cell of an intervention column names.

    Raises:
        ValueError: it names something else.
    """
    if _is_missing(cell) or (isinstance(cell, float) and math.isnan(cell)):
        return []
    text = str(cell).strip()
    if text in variables:
        return [text]
    if text.lower() in _NOTHING:
        return []
    names = [part.strip() for part in text.replace(";", ",").split(",")]
    for name in names:
        if name not in variables:
            raise ValueError(
                f"{where}: {name!r:.60} is no variable. The column names what was "
                f"changed, of {', '.join(variables):.200}; several with a comma; empty "
                "for nothing."
            )
    return names


def _check_length(column: Sequence[Any] | np.ndarray, n: int, name: str) -> None:
    """Refuse a column of another length.

    Raises:
        ValueError: it has not `n` rows.
    """
    if len(column) != n:
        raise ValueError(f"{name!r} has {len(column)} rows and the variables {n}.")
