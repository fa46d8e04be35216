"""What comes back from an experiment, in any of its forms, as rows of a table."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from frugax.causal.data import FLOAT32_STEPS, Samples


def rows_of(data: Any, values: Mapping[str, float], target: str) -> Samples:
    """Rows of a table that sets some variables, or none.

    Args:
        data: a table (`Samples`, or a frame with named columns), a mapping from
            variables to a number or several, or one number for the target. NaN is
            missing.
        values: what was set, and to what.
        target: the variable that one number is for.

    Raises:
        TypeError: it is none of these.
        ValueError: there are no rows, columns of different lengths or with what is no
            number; or it says that something else was set.
    """
    rows = data if isinstance(data, Samples) else _table(data, target)
    if not len(rows):
        raise ValueError(
            "an answer needs at least one row: give NaN where a value is missing, or "
            "say that the experiment failed."
        )
    return _with_set(rows, values) if values else rows


def _table(data: Any, target: str) -> Samples:
    """What is no `Samples` yet as one; nothing is set in it.

    Raises:
        TypeError: it is no table and no number.
        ValueError: columns are of different lengths or hold what is no number.
    """
    if isinstance(data, bool | np.bool_):  # a number to Python, but no measurement
        raise TypeError(f"an answer is a table or a number, got {data}.")
    if isinstance(data, int | float | np.number | np.ndarray):
        data = {target: data}
    elif not isinstance(data, Mapping) and not hasattr(data, "columns"):
        raise TypeError(
            "an answer is a table, a mapping from variables to values or a number for "
            f"{target!r}, got a {type(data).__name__}."
        )
    if isinstance(data, Mapping):
        # One number stands for every row; a list of one is one row.
        n = max((len(c) for c in data.values() if np.ndim(c) == 1), default=1)
        data = {k: [c] * n if np.ndim(c) == 0 else c for k, c in data.items()}
    return Samples.from_frame(data)


def _with_set(rows: Samples, values: Mapping[str, float]) -> Samples:
    """The rows with what was asked for, marked as set.

    Raises:
        ValueError: they say that something else was set.
    """
    for name, value in values.items():
        if name in rows.variables:
            told = rows[name]
            other = np.isfinite(told) & ~np.isclose(told, value, rtol=1e-6, atol=1e-30)
            if other.any():
                raise ValueError(
                    f"the experiment sets {name!r} to {value!r}, and an answer has "
                    f"{told[other][0]:.9g}: leave {name!r} out if it was set as asked; "
                    "else the answer is of another experiment."
                )
    marked = {n for n in rows.variables if rows.intervened[:, rows.index(n)].any()}
    if marked and marked != {*values} & {*rows.variables}:
        raise ValueError(
            f"the experiment sets {', '.join(values)}, and these samples are marked as "
            f"setting {', '.join(sorted(marked)):.200}."
        )
    names = tuple(dict.fromkeys((*rows.variables, *values)))
    table = np.empty((len(rows), len(names)), np.float32)
    for j, name in enumerate(names):
        table[:, j] = values[name] if name in values else rows[name]
    return Samples(names, table, np.tile([n in values for n in names], (len(rows), 1)))


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
                f"campaign: {hint} If what was told before is wrong, tell that once "
                "more with replace=True."
            )


def check_digits(name: str, before: Samples | None, rows: Samples) -> None:
    """Refuse a target whose differences float32 has rounded away.

    A table of float64 is refused when it is told; single numbers can only be judged
    together, and only where they are so large that whole numbers are rounded.

    Args:
        name: of the target.
        before: the rows so far.
        rows: what is told now.

    Raises:
        ValueError: at least two values differ by no more than some of its steps.
    """
    told = [t[name] for t in (before, rows) if t is not None and name in t.variables]
    values = np.concatenate(told).astype(np.float64)
    seen = values[np.isfinite(values)]
    if len(seen) < 2:
        return
    largest = np.abs(seen).max()
    if largest >= 2**24 and seen.std() < FLOAT32_STEPS * np.spacing(
        np.float32(largest)
    ):
        raise ValueError(
            f"{name!r} is so far from 0 that float32 loses what its values differ by "
            f"(mean {seen.mean():g}, spread {seen.std():.3g}): begin a campaign whose "
            "answers have a constant subtracted."
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
