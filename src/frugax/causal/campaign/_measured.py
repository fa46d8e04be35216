"""What experiments gave, from the rows that belong to them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from frugax.causal.worlds import Outcomes, Points

from ._ledger import Entry
from ._settings import Settings

_WIDE = 2 * 1.645  # standard deviations in a forecast's 90 % interval


def not_whole(
    settings: Settings,
    values: Float[np.ndarray, "n d"],
    wanted: Sequence[int],
    of_entry: np.ndarray,
    entries: Sequence[Entry],
    names: tuple[str, ...],
) -> list[tuple[int, Outcomes, float]]:
    """What experiments gave in rows that left something out, for each variable."""
    left_out = np.isnan(values).any(1)
    found: list[tuple[int, Outcomes, float]] = []
    for v in wanted:
        scale = scale_of(values[:, v], of_entry < 0)
        rows = np.where(left_out, values[:, v], np.nan)
        outcomes, _ = outcomes_of(settings, rows, of_entry, entries, names, scale)
        if len(outcomes.mean):
            found.append((v, outcomes, scale))
    return found


def scale_of(
    target: Float[np.ndarray, " n"], observed: Bool[np.ndarray, " n"]
) -> float:
    """Standard deviation in observed rows, else in all; 1 before anything varies."""
    for rows in (target[observed], target):
        seen = rows[np.isfinite(rows)]
        if len(seen) > 1 and seen.std() > 0:
            return float(seen.std())
    return 1.0


def outcomes_of(
    settings: Settings,
    target: Float[np.ndarray, " n"],
    of_entry: np.ndarray,
    entries: Sequence[Entry],
    names: tuple[str, ...],
    scale: float,
) -> tuple[Outcomes, float]:
    """The target's mean in each experiment that gave one, and its error."""
    done: list[tuple[tuple[int, ...], list[float]]] = []
    found: list[np.ndarray] = []
    forecasts: list[tuple[float, float]] = []
    for entry in entries:
        rows = target[of_entry == entry.id]
        rows = rows[np.isfinite(rows)]
        if len(rows) and set(entry.values) <= set(names):
            places = tuple(names.index(n) for n in entry.values)
            done.append((places, list(entry.values.values())))
            found.append(rows)
            forecasts.append(_forecast(entry))
    spare = sum(len(rows) - 1 for rows in found)
    squares = sum(float(rows.var()) * len(rows) for rows in found)
    # With few rows the spread without experiments stands in for theirs.
    one_row = float(np.sqrt((squares + 3 * scale**2) / (spare + 3)))
    points, places = Points.of(done)
    mean, error = np.empty(len(done)), np.empty(len(done))
    for i, rows in zip(places, found, strict=True):
        mean[i], error[i] = rows.mean(), one_row / np.sqrt(len(rows))
    back = np.argsort(places)  # which was asked for, as what
    expected, spread = np.array(forecasts).reshape(-1, 2)[back].T
    outcomes = Outcomes(
        points=points,
        mean=mean,
        error=np.maximum(error, 1e-9 * scale),
        expected=expected,
        spread=spread,
        order=back,
    )
    return outcomes, one_row


def _forecast(entry: Entry) -> tuple[float, float]:
    f = entry.forecast
    if f is None:
        return np.nan, np.nan
    # The interval is wider: it holds the doubt too, which is no part of the worlds.
    return f.expected, (f.high - f.low) / _WIDE if f.spread is None else f.spread
