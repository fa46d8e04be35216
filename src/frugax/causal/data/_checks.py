"""Describe oddities of a table: slips, missing rows, constants, duplicates.

The checks of discovery and of campaigns, so that both say the same of the same table.
"""

from collections.abc import Sequence

import numpy as np
import scipy.linalg
import scipy.stats
from jaxtyping import Bool, Float

from ._plain_numbers import find_codes
from ._samples import Samples

# Values from which the usual range can be seen, and from which tails can.
_MIN_SEEN, _MIN_TAIL = 3, 30
# Widths of nine tenths of the values beyond which a value is far in any distribution: a
# lognormal variable has large values without any error.
_MAX_WIDTHS = 30.0
# A single slip in a distribution without heavy tails: in robust standard deviations
# from the median, and beyond all others by this many times the mean by which the outer
# fifth of them exceeds the rest. Of an exponential tail one in 150 largest values is.
_MAX_STDS, _MIN_GAP = 5.5, 5.0
# More than one value in a hundred is a tail and not a slip.
_MAX_SLIPS = 0.01
# Of a missing value's dependence on another column: a p-value of 1e-7.
_MAX_DIFFERENCE = 5.3
_MIN_MISSING = 5
# Share of a column's standard deviation that others may leave unexplained, by the
# rounding of a table, where they determine it.
_ROUNDED = 1e-3
_MAX_LISTED = 3  # columns of one kind of oddity
# Of the correlation of a column with its next row, in standard errors: a p-value of
# 3e-5. One column alone may drift, as two are needed to go together by chance. And of
# steps with the next step, which tells rows that follow each other from groups of rows.
_MAX_SERIAL, _MAX_STEPS, _MIN_SERIAL = 4.0, 3.0, 10
# Share of rows with a value that comes up several times as often as all others but one,
# as both ends may be limits; a switch, or a count of rare events, has few values.
_MIN_PILE, _PILE_FACTOR, _MIN_VALUES = 0.05, 5, 12
# Probability of as many equal rows, above which they are luck: with few columns of few
# values, as in a design, some are equal.
_LUCK = 1e-3


def describe_oddities(
    samples: Samples, *, before: Samples | None = None, campaign: bool = False
) -> tuple[str, ...]:
    """Describe what in a table makes a graph wrong without any error, each in words.

    Args:
        samples: the table.
        before: earlier rows, beside which its values are judged.
        campaign: whether experiments will follow, which vary constant columns.
    """
    codes = _list_codes(samples)
    found = _join(
        [
            f"{name} is {value:g} in row {row}, but {low:.4g} to {high:.4g} in nearly "
            "all others"
            for name, row, value, low, high in _list_slips(samples, before)
            if value not in [code for other, code, _ in codes if other == name]
        ]
    )
    constant = [
        name
        for name in samples.variables
        if (seen := _seen(samples[name])).size and not np.ptp(seen)
    ]
    if constant and not campaign:
        found.append(
            f"{', '.join(constant):.200} is constant in every row, so that the data "
            "contain neither its causes nor its effects, and the result is the prior: "
            "leave it out with `select`"
        )
    found += [
        f"{name} is {code:g} in {count} rows, beyond all others: if that stands for a "
        "missing value, write NaN in its place"
        for name, code, count in codes
    ]
    found += _join(
        [
            f"{name} is {value:g} in {count} rows"
            for name, value, count in _list_piles(samples)
            if (name, value, count) not in codes
        ],
        ", far more often than any other value: where that is a limit of what is "
        "measured, or another kind of row, causes of its causes may look like causes",
    )
    found += _describe_order(samples)
    found += _describe_copies(samples)
    return (*found, *_describe_missing(samples))


def _join(parts: list[str], conclusion: str = "") -> list[str]:
    """Say the same of several columns at once."""
    if (rest := len(parts) - _MAX_LISTED) > 0:
        parts = [*parts[:_MAX_LISTED], f"and so on for {rest} more columns"]
    return ["; ".join(parts) + conclusion] if parts else []


def _list_slips(
    samples: Samples, before: Samples | None
) -> list[tuple[str, int, float, float, float]]:
    found: list[tuple[str, int, float, float, float]] = []
    for name in samples.variables:
        values = _natural(samples, name)
        earlier = np.empty(0)
        if before is not None and name in before.variables:
            earlier = _natural(before, name)
        every = np.concatenate([earlier, values])
        wild = find_wild(every)
        here = np.flatnonzero(wild[len(earlier) :])
        if len(here):
            usual = every[np.isfinite(every) & ~wild]
            row = int(here[0])
            ends = float(usual.min()), float(usual.max())
            found.append((name, row, float(values[row]), *ends))
    return found


def _list_codes(samples: Samples) -> list[tuple[str, float, int]]:
    """List the codes of all columns; see `find_codes`."""
    return [
        (name, *found)
        for name in samples.variables
        for found in find_codes(_natural(samples, name))
    ]


def _list_piles(samples: Samples) -> list[tuple[str, float, int]]:
    """List 0 and ends of columns that many rows share, where there are many values.

    Another value may be the usual one: 40 hours of work, 12 years of school.
    """
    found: list[tuple[str, float, int]] = []
    for name in samples.variables:
        seen = _seen(_natural(samples, name))
        values, counts = np.unique(seen, return_counts=True)
        if len(values) < _MIN_VALUES:
            continue
        pile, usual = int(np.argmax(counts)), np.sort(counts)[-3]
        least = max(_MIN_MISSING, _MIN_PILE * len(seen), _PILE_FACTOR * usual)
        if counts[pile] >= least and values[pile] in (0, values[0], values[-1]):
            found.append((name, float(values[pile]), int(counts[pile])))
    return found


def _describe_order(samples: Samples) -> list[str]:
    """Describe columns that number the rows, or that drift from row to row."""
    rows = ~samples.intervened.any(1)
    numbers, drifting, following = list[str](), list[str](), list[str]()
    is_sorted = False
    for name in samples.variables:
        seen = _seen(samples[name][rows])
        if len(seen) < _MIN_SERIAL or not np.ptp(seen):
            continue
        steps = np.diff(seen)
        if abs(steps[0]) == 1 and (steps == steps[0]).all():
            numbers.append(name)
            continue
        if (steps >= 0).all() or (steps <= 0).all():
            is_sorted = True
            continue
        # Of ranks: one wild value must neither hide the rest nor stand for it.
        ranks = scipy.stats.rankdata(seen)
        serial = _correlate_next(ranks - ranks.mean())
        is_design = len(np.unique(seen)) < _MIN_VALUES
        if is_design or serial * np.sqrt(len(seen)) <= _MAX_SERIAL:
            continue
        drifting.append(name)
        # Steps between independent rows go back half of the way in the next step, also
        # within groups of rows: by Bartlett's formula the standard error is this one.
        back = _correlate_next(np.diff(ranks)) + 0.5
        if back * np.sqrt(2 * len(steps)) > _MAX_STEPS:
            following.append(name)
    found: list[str] = []
    if numbers:
        found.append(
            f"{', '.join(numbers):.200} goes up or down by 1 from row to row: if it "
            "numbers the rows, or is their time, leave it out"
        )
    if len(following) > 1:
        found.append(
            f"{', '.join(following):.200} change little from row to row: the rows are "
            "not independent, and what drifts looks like cause and effect: give "
            "differences from row to row, or rows further apart"
        )
    elif len(drifting) > 1 and not is_sorted:
        found.append(
            f"{', '.join(drifting):.200} change with the order of the rows. Where that "
            "is a group or a time which no column holds, it may be their common cause: "
            "give it as a column"
        )
    return found


def _correlate_next(values: Float[np.ndarray, " n"]) -> float:
    """Correlate values of mean 0 with the next ones."""
    return float(values[1:] @ values[:-1] / (values @ values))


def _natural(samples: Samples, name: str) -> Float[np.ndarray, " n"]:
    """Return the values that were not set: set ones are far from others on purpose."""
    values = samples[name].astype(np.float64)
    return np.where(samples.intervened[:, samples.index(name)], np.nan, values)


def find_wild(values: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Find values that are so far from nearly all others that they may be slips.

    Incomes and counts have large values without any error: what has no negative value
    must be far in logarithms, too.
    """
    wild = _find_far(values)
    if wild.any() and not np.nanmin(values) < 0:
        wild &= _find_far(np.log(values + values[values > 0].min(initial=np.inf)))
    return wild


def _find_far(values: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    known = np.isfinite(values)
    seen = values[known]
    if len(seen) <= _MIN_SEEN:
        return np.zeros(len(values), bool)
    median = np.median(seen)
    apart = np.abs(seen - median)
    usual = seen[np.argsort(apart)[: len(seen) - max(1, len(seen) // 10)]]
    far = _MAX_WIDTHS * np.ptp(usual)
    beyond = np.maximum(usual.min() - values, values - usual.max())
    wild = known & (far > 0) & (beyond > far)
    # 0.6745 makes the median deviation that of a normal distribution's standard one.
    limit = _MAX_STDS * float(np.median(apart)) / 0.6745
    if len(seen) < _MIN_TAIL or not limit:
        return wild
    slips = known & (np.abs(values - median) > limit)
    if not 0 < slips.sum() <= max(1, _MAX_SLIPS * len(seen)):
        return wild
    others = np.sort(values[known & ~slips])
    tail = len(others) // 5
    above = others[-tail:].mean() - others[-tail - 1]
    below = others[tail] - others[:tail].mean()
    is_beyond = (values - others[-1] > _MIN_GAP * above) | (
        others[0] - values > _MIN_GAP * below
    )
    return wild | (slips & is_beyond)


def _describe_copies(samples: Samples) -> list[str]:
    """Describe rows and columns that stand twice."""
    found: list[str] = []
    values, names = samples.values.astype(np.float64), samples.variables
    # Of switches and categories equal rows are expected, of measurements they are not.
    rows = np.isfinite(values).all(1) & ~samples.intervened.all(1)
    num_rows = int(rows.sum())
    if num_rows < _MIN_TAIL:
        return []
    marked = np.concatenate([values[rows], samples.intervened[rows]], axis=1)
    codes = [np.unique(column, return_inverse=True)[1] for column in marked.T]
    if max(code.max() for code in codes) >= num_rows / 4:
        # Sums of random 64-bit numbers, one for each value: equal rows have equal sums.
        rng = np.random.default_rng(0)
        terms = [rng.integers(1 << 63, size=code.max() + 1)[code] for code in codes]
        count = lambda sums: num_rows - len(np.unique(sums))
        copies, parts = count(sum(terms)), terms[: len(names)]
        # Pairs of rows that are equal by luck, if columns know nothing of each other.
        equal = [np.sum((np.bincount(c) / num_rows) ** 2) for c in codes]
        by_luck = num_rows * (num_rows - 1) / 2 * np.prod(equal)
        is_luck = scipy.stats.poisson.sf(copies - 1, by_luck) > _LUCK
        # Rounded values coincide, and then far more would without one of the columns.
        if (
            not is_luck
            and np.median([count(sum(terms) - p) for p in parts]) < 2 * copies
        ):
            found.append(
                f"{copies} of {num_rows} rows repeat another exactly: each counts as "
                "one more observation, so leave copies out"
            )
    moving = np.flatnonzero(values[rows].std(0) > 0)
    # With few rows each column is a sum of others.
    if not 1 < len(moving) < num_rows / 2:
        return found
    z = values[rows][:, moving]
    z = (z - z.mean(0)) / z.std(0)
    # Of columns that determine each other the pivots come first.
    root, order = scipy.linalg.qr(z, mode="r", pivoting=True)
    size = np.abs(np.diag(root[: len(moving)])) / np.sqrt(num_rows)
    independent, rest = order[size > _ROUNDED], order[size <= _ROUNDED]
    for j in np.sort(rest)[:_MAX_LISTED]:
        weights = np.linalg.lstsq(z[:, independent], z[:, j], rcond=None)[0]
        by = independent[np.abs(weights) > _ROUNDED]
        if len(by) == 1:
            one, other = (names[moving[i]] for i in sorted((j, by[0])))
            text = f"{one} and {other} hold the same values, perhaps in two units"
        else:
            others = " and ".join(names[moving[i]] for i in np.sort(by))
            text = f"{names[moving[j]]} is a weighted sum of {others:.200}"
        found.append(f"{text}: no data say which of them causes what, so leave one out")
    return found


def _describe_missing(samples: Samples) -> list[str]:
    """Describe how many rows are left, and whether they are a random part."""
    missing = np.isnan(samples.values)
    rows = np.asarray(missing.any(1))
    if not rows.any():
        return []
    counts = sorted(zip(-missing.sum(axis=0), samples.variables, strict=True))
    lacking = ", ".join(f"{name} ({-k})" for k, name in counts[:3] if k)
    found = [
        f"{rows.sum()} of {len(rows)} rows lack a value, most often of {lacking}: "
        "where such a variable is judged these rows are left out"
    ]
    values, parts = samples.values.astype(np.float64), list[str]()
    for j, name in enumerate(samples.variables):
        if missing[:, j].sum() < _MIN_MISSING:
            continue
        related = [
            other
            for i, other in enumerate(samples.variables)
            if i != j and _is_related(missing[:, j], values[:, i])
        ]
        if related:
            parts.append(
                f"whether {name} is missing depends on {', '.join(related):.200}"
            )
    return found + _join(
        parts,
        ": the rows that are left are not a random part, and may show relations that "
        "the whole does not have",
    )


def _is_related(missing: Bool[np.ndarray, " n"], values: np.ndarray) -> bool:
    """Whether the mean of a column differs between rows with and without a value."""
    groups = [_seen(values[missing]), _seen(values[~missing])]
    if min(map(len, groups)) < _MIN_MISSING:
        return False
    error = np.sqrt(sum(g.var() / len(g) for g in groups))
    return bool(abs(groups[0].mean() - groups[1].mean()) > _MAX_DIFFERENCE * error > 0)


def _seen(values: np.ndarray) -> np.ndarray:
    # In float64, as differences of two float32 may not fit into one.
    return values[np.isfinite(values)].astype(np.float64)


def complete_rows(
    present: Bool[np.ndarray, "n d"], variables: Sequence[str]
) -> Bool[np.ndarray, " n"]:
    """Return the rows with a value of each variable.

    Raises:
        ValueError: fewer than two rows are complete.
    """
    rows = np.asarray(present.all(1))
    if rows.sum() >= 2:
        return rows
    # What leaving a variable out would give back.
    gains = [np.delete(present, j, axis=1).all(1).sum() for j in range(len(variables))]
    best = int(np.argmax(gains))
    raise ValueError(
        f"{rows.sum()} of {len(rows)} rows have a value of each of "
        f"{', '.join(variables):.200}: at least two must. Without "
        f"{variables[best]!r} there would be {gains[best]}: leave it out with "
        "`select`, or give rows in which all were measured."
    )
