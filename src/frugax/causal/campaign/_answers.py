"""What comes back from an experiment, in any of its forms, as rows of a table."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from frugax.causal.data import Samples


def rows_of(data: Any, values: Mapping[str, float], target: str) -> Samples:
    """Rows of a table that sets some variables, or none.

    Args:
        data: a table (`Samples`, or a frame with named columns), a mapping from
            variables to a number or several, or one number for the target. NaN is
            missing.
        values: what was set, and to what; this is what counts, whatever the table
            says.
        target: the variable that one number is for.

    Raises:
        TypeError: it is none of these.
        ValueError: there are no rows, or columns of different lengths.
    """
    if isinstance(data, bool | np.bool_):  # a number to Python, but no measurement
        raise TypeError(f"an answer is a table or a number, got {data}.")
    if isinstance(data, Samples):
        columns = {name: data[name] for name in data.variables}
    elif hasattr(data, "columns"):
        columns = {str(name): np.asarray(data[name]) for name in data.columns}
    elif isinstance(data, Mapping):
        columns = {str(name): np.asarray(column) for name, column in data.items()}
    elif isinstance(data, int | float | np.number | np.ndarray):
        columns = {target: np.asarray(data)}
    else:
        raise TypeError(
            "an answer is a table, a mapping from variables to values or a number for "
            f"{target!r}, got a {type(data).__name__}."
        )
    arrays = {name: _numbers(name, column) for name, column in columns.items()}
    lengths = {name: len(column) for name, column in arrays.items()}
    n = max(lengths.values(), default=0)
    if n == 0:
        raise ValueError(
            "an answer needs at least one row: give NaN where a value is missing, or "
            "say that the experiment failed."
        )
    for name, length in lengths.items():
        if length not in (1, n):
            raise ValueError(f"{name!r} has {length} rows where others have {n}.")
    for name, value in values.items():
        arrays[name] = np.full(n, value)
    names = tuple(arrays)
    table = np.stack([np.broadcast_to(arrays[name], n) for name in names], axis=1)
    set_ = np.tile([name in values for name in names], (n, 1))
    return Samples(names, table.astype(np.float32), set_)


def check_answer(
    rows: Samples, *, most: int, needed: Iterable[str], known: Collection[str] | None
) -> None:
    """Refuse rows that are no answer to the question; it costs nothing then.

    Args:
        rows: of the experiment.
        most: how many rows one experiment gives.
        needed: columns that there must be.
        known: columns that there may be; None for any, before a table was told.

    Raises:
        ValueError: there are more rows, or a column too few or too many.
    """
    if len(rows) > most:
        raise ValueError(
            f"an experiment gives {most} row{'s' if most > 1 else ''} in this campaign "
            f"(rows={most}), got {len(rows)}: begin it with rows={len(rows)}, or tell "
            "their mean."
        )
    for name in needed:
        if name not in rows.variables:
            raise ValueError(
                f"an answer needs {name!r}, and this one has "
                f"{', '.join(rows.variables):.200}: give NaN if it was not measured."
            )
    for name in rows.variables:
        if known is not None and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"is it {close[0]!r}?" if close else "leave it out."
            raise ValueError(
                f"an answer has {name!r}, which is in no row before and not in the "
                f"campaign: {hint}"
            )


def joined(one: Samples | None, other: Samples) -> Samples:
    """The rows of both; NaN where one of them lacks a column."""
    if one is None:
        return other
    names = tuple(dict.fromkeys((*one.variables, *other.variables)))
    return _widened(one, names).concat(_widened(other, names))


def _widened(samples: Samples, names: tuple[str, ...]) -> Samples:
    values = np.full((len(samples), len(names)), np.nan, np.float32)
    set_ = np.zeros(values.shape, bool)
    for j, name in enumerate(names):
        if name in samples.variables:
            i = samples.variables.index(name)
            values[:, j], set_[:, j] = samples.values[:, i], samples.intervened[:, i]
    return Samples(names, values, set_)


def _numbers(name: str, column: np.ndarray) -> np.ndarray:
    try:
        found = np.atleast_1d(np.asarray(column, np.float64))
    except (TypeError, ValueError) as e:
        raise ValueError(f"{name!r} must hold numbers, got {column!r:.80}.") from e
    if found.ndim != 1:
        raise ValueError(f"{name!r} must be one column, got shape {found.shape}.")
    with np.errstate(over="ignore"):
        narrow = found.astype(np.float32)
    if np.isinf(narrow).any():
        raise ValueError(
            f"{name!r} is {found[np.isinf(narrow)][0]}, which float32 cannot hold: "
            "give NaN where a value is missing."
        )
    return found
