"""Read and check the rows that answer an experiment; flag outliers as likely slips."""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from frugax.causal.data import FLOAT32_STEPS, Samples, describe_oddities, find_wild

from ._experiments import ExperimentRecord
from ._settings import CampaignSettings
from .actions import Action, Binary, Categorical, Logarithmic, to_code

_MIN_SEEN = 3  # values from which the usual range can be seen
_MAX_WIDTHS = 3.0  # widths of the usual range, beyond its ends
_MAX_SIZES = 1e6  # times 1, or the largest of too few values to see their range
# Similarity, by difflib, of a column that may be a variable misspelt: of `nitrgen` and
# `nitrogen` it is 0.93, of `heat` and `heating`, two variables, 0.73.
_CLOSE_NAME = 0.8


class UnknownColumnError(ValueError):
    """An answer has a column that neither the campaign nor an earlier row has.

    Attributes:
        problem: the column, and the one that may be meant.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem} If an earlier answer is wrong, tell it again with replace=True."
        )
        self.problem = problem


def encode_settings(data: Any, variables: Mapping[str, Action]) -> Any:
    """Replace the names of levels in the columns of a table by their codes."""
    if isinstance(data, Samples):
        _check_codes(data, variables)
        return data
    columns: Any = data if isinstance(data, Mapping) else getattr(data, "columns", ())
    named = [
        name
        for name, action in variables.items()
        if isinstance(action, Categorical | Binary) and name in columns
    ]
    if not named:
        return data
    table = {str(name): data[name] for name in columns}
    for name in named:
        column = table[name]
        if isinstance(column, str) or not hasattr(column, "__len__"):
            column = [column]
        codes = table[name] = [np.nan] * len(column)
        for row, each in enumerate(column):
            # NaN alone differs from itself; both mark a missing value.
            if each is None or each != each:
                continue
            try:
                codes[row] = to_code(name, each, variables[name])
            except ValueError as error:
                raise ValueError(f"row {row}: {error}") from None
    return table


def _check_codes(samples: Samples, variables: Mapping[str, Action]) -> None:
    """Refuse codes without a level."""
    for name, action in variables.items():
        if name in samples.variables and isinstance(action, Categorical | Binary):
            column = samples[name]
            bad = np.isfinite(column) & ~np.isin(column, action.codes)
            if len(rows := np.flatnonzero(bad)):
                raise ValueError(
                    f"row {rows[0]}: {name!r} is {column[rows[0]]:g}, but in a table "
                    f"of numbers it must be one of its codes, {action.codes.tolist()}."
                )


def check_positive(rows: Samples, variables: Mapping[str, Action]) -> None:
    """Refuse values without a logarithm of variables with a logarithmic range.

    Raises:
        ValueError: one is zero or negative.
    """
    for name, action in variables.items():
        if not isinstance(action, Logarithmic) or name not in rows.variables:
            continue
        if len(bad := np.flatnonzero(rows[name] <= 0)):
            raise ValueError(
                f"row {bad[0]}: {name!r} is {rows[name][bad[0]]:g}, but its range is "
                "logarithmic and needs positive values: leave the row out, or begin "
                "the campaign with a plain range (low, high)."
            )


def read_rows(data: Any, values: Mapping[str, float], target: str) -> Samples:
    """Read the rows of an experiment that sets some variables, or none."""
    rows = data
    if not isinstance(data, Samples):
        rows = _read_table(data, target)
    if not len(rows) and values:
        raise ValueError(
            "an answer needs at least one row: give NaN where a value is missing, or "
            "record the failure with tell_failed."
        )
    return _mark_interventions(rows, values) if values else rows


def _read_table(data: Any, target: str) -> Samples:
    if isinstance(data, bool | np.bool_):  # a number for Python, but not a measurement
        raise TypeError(f"an answer must be a table or a number, got {data}.")
    if isinstance(data, int | float | np.number | np.ndarray):
        data = {target: data}
    elif not isinstance(data, Mapping) and not hasattr(data, "columns"):
        raise TypeError(
            "an answer must be a table, a mapping from variables to values or a number "
            f"for {target!r}, got a {type(data).__name__}."
        )
    if isinstance(data, Mapping):
        # One number stands for every row; a list of one is one row.
        n = max((len(c) for c in data.values() if np.ndim(c) == 1), default=1)
        data = {k: [c] * n if np.ndim(c) == 0 else c for k, c in data.items()}
    return Samples.from_frame(data)


def _mark_interventions(rows: Samples, values: Mapping[str, float]) -> Samples:
    """Mark the columns that the experiment set, and add those that are missing."""
    for name, value in values.items():
        if name in rows.variables:
            column = rows[name]
            # Wider than the steps of float32, in which the table holds the value.
            other = np.isfinite(column) & ~np.isclose(
                column, value, rtol=1e-6, atol=1e-30
            )
            if other.any():
                raise ValueError(
                    f"the experiment sets {name!r} to {value!r}, but the answer has "
                    f"{column[other][0]:.9g}: leave {name!r} out if it was set as "
                    f"asked, pass actual={{{name!r}: ...}} if it was not quite, or "
                    "answer the other experiment."
                )
    # Rows in which a variable was set say nothing about its causes. Wrong marks would
    # therefore teach the models wrong edges.
    marked = {n for n in rows.variables if rows.intervened[:, rows.index(n)].any()}
    if marked and marked != {*values} & {*rows.variables}:
        raise ValueError(
            f"the experiment sets {', '.join(values)}, but these samples are marked as "
            f"setting {', '.join(sorted(marked)):.200}: leave the marks out, or mark "
            "the same variables."
        )
    names = tuple(dict.fromkeys((*rows.variables, *values)))
    # The value that was asked for counts, as the one told may have been rounded.
    table = np.empty((len(rows), len(names)), np.float32)
    for j, name in enumerate(names):
        table[:, j] = values[name] if name in values else rows[name]
    return Samples(names, table, np.tile([n in values for n in names], (len(rows), 1)))


def check_answer(
    rows: Samples, *, max_rows: int, target: str, known: Collection[str] | None
) -> None:
    """Refuse rows that do not answer the experiment; they cost nothing then."""
    # The worth of the experiment was computed from the noise of this number of rows.
    if len(rows) > max_rows:
        raise ValueError(
            f"got {len(rows)} rows, but rows_per_experiment={max_rows} in this "
            f"campaign: begin it with rows_per_experiment={len(rows)}, or tell their "
            "mean."
        )
    if target not in rows.variables:
        raise ValueError(
            f"the answer has {describe_missing(target, rows.variables)} Give NaN if it "
            "was not measured."
        )
    for name in rows.variables:
        # A misspelt column would otherwise become a variable of the models.
        if known is not None and name not in known:
            hint = "leave it out."
            if close := difflib.get_close_matches(name, known, n=1):
                hint = f"is it {close[0]!r}?"
            raise UnknownColumnError(
                f"the answer has {name!r}, which neither the campaign nor an earlier "
                f"row has: {hint}"
            )


def describe_missing(target: str, names: Collection[str]) -> str:
    """Describe a table without the target, and suggest the column that is meant."""
    text = f"no column for the target {target!r}, only {', '.join(names):.200}."
    folded = {name.casefold(): name for name in names}
    for close in difflib.get_close_matches(target.casefold(), folded, n=1):
        text = f"{text[:-1]}: is {folded[close]!r} meant?"
    return text


def check_digits(name: str, before: Samples | None, rows: Samples) -> None:
    """Refuse a target whose differences float32 has rounded away."""
    # `Samples` refuses such a table of float64. Single numbers can only be judged
    # together, and only where they are large enough to round whole numbers.
    # At 2^24 float32 starts to round whole numbers. Below it, answers with few digits
    # such as 4.2 may differ by little because they are alike.
    tables = [t for t in (before, rows) if t is not None and name in t.variables]
    values = np.concatenate([t[name] for t in tables]).astype(np.float64)
    seen = values[np.isfinite(values)]
    if len(seen) < 2:
        return
    largest = np.abs(seen).max()
    step = np.spacing(np.float32(largest))
    if largest >= 2**24 and seen.std() < FLOAT32_STEPS * step:
        raise ValueError(
            f"{name!r} is so far from 0 that float32 loses the differences of its "
            f"values (mean {seen.mean():g}, spread {seen.std():.3g}): subtract a "
            "constant from all answers, in a new campaign."
        )


def find_outliers(
    settings: CampaignSettings,
    record: ExperimentRecord,
    rows: Samples,
    others: Samples | None,
) -> tuple[str, ...]:
    """Describe values that are so far from all others that they may be slips.

    A value is an outlier if it is further from its range, from the values in other rows
    and from the forecast than three times the width of the first two. Where fewer than
    three values were seen, it is one that is a million times as large.
    """
    found: list[str] = []
    for name in rows.variables:
        if name in record.values:
            continue
        values, seen, wild = rows[name].astype(np.float64), np.empty(0), 0
        if others is not None and name in others.variables:
            seen = others[name].astype(np.float64)
            seen = seen[np.isfinite(seen)]
            # One slip must not hide the next, neither here nor in the forecast.
            usual = seen[~find_wild(seen)]
            wild, seen = len(seen) - len(usual), usual
        ends = list(settings.ranges.get(name, ()))
        if len(seen) >= _MIN_SEEN:
            ends += [float(seen.min()), float(seen.max())]
        if ends:
            far = _MAX_WIDTHS * (max(ends) - min(ends))
        elif name == settings.target:
            far = _MAX_SIZES * max([1.0, *np.abs(seen)])
            ends = [*seen] or [0.0]
        else:
            continue
        if name == settings.target and record.forecast is not None and not wild:
            ends += [record.forecast.low, record.forecast.high]
        low, high = min(ends), max(ends)
        odd = values[(values < low - far) | (values > high + far)]
        # Equal values have a width of 0, and any other value would be an outlier.
        if far and len(odd):
            why = f"far from the values seen or expected, {low:.4g} to {high:.4g}"
            if name == settings.target and not len(seen):
                why = "very large, and no other value was seen"
            found.append(f"{name} = {odd[0]:g} is {why}")
    return tuple(found)


def _is_misspelt(name: str, other: str) -> bool:
    """Whether two names are nearly the same, as `nitrgen` and `nitrogen` are."""
    # Names that differ in a number, such as x1 and x2, are different names.
    if re.findall(r"\d", name) != re.findall(r"\d", other):
        return False
    pair = name.casefold(), other.casefold()
    return difflib.SequenceMatcher(None, *pair).ratio() >= _CLOSE_NAME


def describe_wild(
    settings: CampaignSettings, before: Samples | None, rows: Samples
) -> tuple[str, ...]:
    """Describe observations that may be slips, or may mislead in another way."""
    found: list[str] = []
    have = {*rows.variables, *(() if before is None else before.variables)}
    for name in settings.variables.keys() - have:
        # `Heat`, `heat / K` or `heat_K`; `heating` is another variable.
        meant = re.compile(re.escape(name) + r"(?![^\W_]).*", re.IGNORECASE)
        found += [
            f"no column is {name!r}, but one is {other!r}: rename it"
            for other in sorted(have - settings.named.keys())
            if meant.fullmatch(other) or _is_misspelt(name, other)
        ]
    for name in rows.variables:
        values = rows[name].astype(np.float64)
        usual = values[np.isfinite(values) & ~find_wild(values)]
        if name in settings.ranges and len(usual):
            low, high = settings.ranges[name]
            if usual.min() > 2 * high - low or usual.max() < 2 * low - high:
                found.append(
                    f"{name} is {usual.min():.4g} to {usual.max():.4g}, far from its "
                    f"range {low:g} to {high:g} (another unit?)"
                )
    return (*found, *describe_oddities(rows, before=before, campaign=True))
