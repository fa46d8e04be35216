"""What experiments gave, from the rows that belong to them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from frugax.causal.posterior import Outcomes, Points

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
    counted: Float[np.ndarray, " n"] | None = None,
) -> tuple[Outcomes, float]:
    """The target's mean in each experiment that gave one, and its error.

    Args:
        settings: of the campaign.
        target: its value in each row; NaN is missing.
        of_entry: which experiment each row is of.
        entries: the experiments.
        names: the variables of the worlds.
        scale: the target's spread.
        counted: how much of each row the worlds count; None for all of it.

    Returns:
        The outcomes, and the standard deviation of one row of an experiment.
    """
    done: list[tuple[tuple[int, ...], list[float]]] = []
    found: list[np.ndarray] = []
    forecasts: list[tuple[float, float]] = []
    left: list[float] = []
    for entry in entries:
        its = (of_entry == entry.id) & np.isfinite(target)
        rows = target[its]
        if len(rows) and set(entry.values) <= set(names):
            places = tuple(names.index(n) for n in entry.values)
            done.append((places, list(entry.values.values())))
            found.append(rows)
            forecasts.append(_forecast(entry))
            left.append(0.0 if counted is None else 1.0 - float(counted[its].mean()))
    spare = sum(len(rows) - 1 for rows in found)
    squares = sum(float(rows.var()) * len(rows) for rows in found)
    # With few rows the spread without experiments stands in for theirs.
    one_row = float(np.sqrt((squares + 3 * scale**2) / (spare + 3)))
    points, places = Points.from_interventions(done)
    mean, error = np.empty(len(done)), np.empty(len(done))
    for i, rows in zip(places, found, strict=True):
        mean[i], error[i] = rows.mean(), one_row / np.sqrt(len(rows))
    back = np.argsort(places)  # which was asked for, as what
    expected, spread = np.array(forecasts).reshape(-1, 2)[back].T
    outcomes = Outcomes(
        points=points,
        mean=mean,
        error=np.maximum(error, 1e-9 * scale),
        forecast=expected,
        forecast_std=spread,
        order=back,
        unused_frac=np.array(left)[back],
    )
    return outcomes, one_row


def _forecast(entry: Entry) -> tuple[float, float]:
    f = entry.forecast
    if f is None:
        return np.nan, np.nan
    # The interval is wider: it holds the doubt too, which is no part of the worlds.
    return f.expected, (f.high - f.low) / _WIDE if f.spread is None else f.spread
