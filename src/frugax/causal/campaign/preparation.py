"""Prepare rows for inference: select variables, impute, subsample, average outcomes."""

from collections.abc import Sequence

import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int

from frugax.causal.data import Samples
from frugax.causal.posterior import MAX_VARIABLES, Outcomes, Points

from ._experiments import ExperimentRecord
from ._settings import CampaignSettings
from ._state import OBSERVED
from .actions import snap

# Fewer whole numbers may be luck.
_MIN_WHOLE = 10
# A normal law as wide as the counts would show no value below 0 as rarely as this.
_MAX_LUCK = 0.05
# A variable that fewer rows have says little, and costs the rows that lack it.
_MIN_MEASURED_FRAC = 0.5
# Mechanisms are fitted as if there were a thousand rows at most, so further rows of one
# experiment say less than tempering leaves open anyway. Its mean uses all of them.
_MAX_ROWS_EXPERIMENT, _MAX_ROWS_OBSERVED = 250, 2000
# Effective rows of one experiment, and of the observations, when graphs are compared. A
# misspecified graph is wrong in the same way in each row of an experiment, so these
# rows are far from independent evidence (Miller & Dunson 2019, J. American Statistical
# Association 114:1113-1125).
_EFFECTIVE_ROWS_EXPERIMENT, _EFFECTIVE_ROWS_OBSERVED = 25, 1000


def select_variables(settings: CampaignSettings, table: Samples) -> tuple[str, ...]:
    """Select the variables of the models: at most twelve, in alphabetical order.

    The order of the table's columns would decide how sums are rounded, and which draw
    belongs to which variable; a campaign must not depend on it.
    """
    settings.check_columns(table.variables)
    must = settings.modelled
    measured = np.isfinite(table.values).sum(0) / max(len(table), 1)
    # Variables that may be set are kept however seldom they were measured: the
    # experiments themselves can measure them.
    strength = {
        n: _measure_association(table, n, settings.target)
        for n in table.variables
        if n not in must
        and (n in settings.variables or measured[table.index(n)] >= _MIN_MEASURED_FRAC)
    }

    def fill(must: frozenset[str]) -> set[str]:
        rest = [n for n in strength if n not in must]
        # Equal strengths are ordered by name, as the order of columns must not matter.
        rest.sort(key=lambda n: (-strength[n], n))
        return {*must, *rest[: MAX_VARIABLES - len(must)]}

    kept = fill(must)
    sets = settings.allowed_sets()
    if not any({*s} <= kept for s in sets):
        # No experiment would be left: keep the set with the strongest association.
        fitting = [s for s in sets if len({*s} | must) <= MAX_VARIABLES]
        kept = fill(
            must.union(max(fitting, key=lambda s: sum(strength.get(n, 0.0) for n in s)))
        )
    return tuple(sorted(kept))


def _measure_association(table: Samples, name: str, target: str) -> float:
    """Return the share of the target's variance that a parabola explains."""
    x, y = table[name].astype(np.float64), table[target].astype(np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    if len(x) < 3 or not x.std() or not y.std():
        return 0.0
    x = (x - x.mean()) / x.std()
    columns = np.stack([x, x**2 - 1], axis=1)
    # The square of a variable with two values is constant.
    columns = columns[:, columns.std(0) > 0]
    y = (y - y.mean()) / y.std()
    fit = columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    return float(fit.var())


def find_imputed_values(
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    names: tuple[str, ...],
    settings: CampaignSettings,
) -> dict[str, float]:
    """Find values for interventable variables that are missing from observed rows.

    Incomplete rows say little about graphs. A variable that is measured only where it
    is set was presumably constant in all other rows.
    """
    observed = ~intervened.any(1)
    found: dict[str, float] = {}
    for j, name in enumerate(names):
        if name not in settings.variables or np.isfinite(values[observed, j]).all():
            continue
        unset = values[~intervened[:, j], j]
        unset = unset[np.isfinite(unset)]
        if not len(unset):
            low, high = settings.ranges[name]
            middle = np.array([low + (high - low) / 2])
            found[name] = float(snap(middle, settings.variables[name])[0])
        elif not np.ptp(unset):
            found[name] = float(unset[0])
    return found


def number_past_experiments(
    settings: CampaignSettings,
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    experiment_ids: Int[np.ndarray, " n"],
    experiments: Sequence[ExperimentRecord],
    names: tuple[str, ...],
) -> tuple[Int[np.ndarray, " n"], tuple[ExperimentRecord, ...]]:
    """Count rows that were told as observations but set variables as experiments."""
    ids, found = experiment_ids.copy(), list(experiments)
    numbers: dict[tuple[tuple[str, float], ...], int] = {}
    for i in np.flatnonzero((experiment_ids == OBSERVED) & intervened.any(1)):
        which = np.flatnonzero(intervened[i])
        # The experiments of a campaign set other variables than some of the past may,
        # and the value that was set may be lost.
        if not {names[v] for v in which} <= set(settings.variables) or (
            np.isnan(values[i, which]).any()
        ):
            continue
        key = tuple((names[v], float(values[i, v])) for v in which)
        if key not in numbers:
            numbers[key] = len(found)
            found.append(
                ExperimentRecord(id=len(found), values=dict(key), status="answered")
            )
        ids[i] = numbers[key]
    return ids, tuple(found)


def subsample_rows(
    values: Float[np.ndarray, "n d"], experiment_ids: Int[np.ndarray, " n"], seed: int
) -> Bool[np.ndarray, " n"]:
    """Select the rows for the likelihood: complete rows first, then any."""
    used = np.ones(len(values), bool)
    incomplete = np.asarray(np.isnan(values).any(1))
    for number in set(experiment_ids.tolist()):
        rows = np.flatnonzero(experiment_ids == number)
        limit = _MAX_ROWS_OBSERVED if number == OBSERVED else _MAX_ROWS_EXPERIMENT
        if len(rows) > limit:
            # A seed for each experiment: new experiments leave its rows as they are.
            mixed = np.random.default_rng([seed, number + 1]).permutation(rows)
            # A stable sort keeps the rows of either kind in their random order.
            by_need = mixed[np.argsort(incomplete[mixed], kind="stable")]
            used[by_need[limit:]] = False
    return used


def graph_row_weights(
    experiment_ids: Int[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """Return the share of each row that counts when graphs are compared."""
    found = np.ones(len(experiment_ids))
    for number in set(experiment_ids.tolist()):
        rows = experiment_ids == number
        limit = _EFFECTIVE_ROWS_EXPERIMENT
        if number == OBSERVED:
            limit = _EFFECTIVE_ROWS_OBSERVED
        found[rows] = min(1.0, limit / rows.sum())
    return found


def estimate_scale(
    values: Float[np.ndarray, " n"], observed: Bool[np.ndarray, " n"]
) -> float:
    """Return the standard deviation in observed rows, or else in all rows.

    It is 1 before anything varies.
    """
    # Experiments push variables to the ends of their ranges, so the spread of all rows
    # would depend on the budget. Observations do not.
    for rows in (values[observed], values):
        seen = rows[np.isfinite(rows)]
        if len(seen) > 1 and seen.std() > 0:
            return float(seen.std())
    return 1.0


def find_mean_range(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return 0 and 1 for a switch, whose mean is a probability; from 0 for a count.

    A score may have zeros and still turn negative, and cut at 0 all good experiments
    would look alike. So 0 is a bound only where values end there by no luck.
    """
    seen = values[np.isfinite(values)]
    # Some answers may be means of several rows.
    whole = seen[seen == seen.round()]
    if len(whole) < _MIN_WHOLE or seen.min() < 0 or (whole == 0).sum() < 2:
        return -np.inf, np.inf
    if seen.max() == 1:
        return 0.0, 1.0
    below = scipy.special.ndtr((-0.5 - whole.mean()) / max(float(whole.std()), 1e-9))
    is_bound = (1 - below) ** len(whole) <= _MAX_LUCK
    return 0.0 if is_bound else -np.inf, np.inf


def summarize_outcomes(
    values: Float[np.ndarray, " n"],
    experiment_ids: np.ndarray,
    experiments: Sequence[ExperimentRecord],
    names: tuple[str, ...],
    scale: float,
) -> tuple[Outcomes, float]:
    """Compute the mean of a variable in each experiment, and its error."""
    done: list[tuple[tuple[int, ...], list[float]]] = []
    groups: list[np.ndarray] = []
    for one in experiments:
        own = (experiment_ids == one.id) & np.isfinite(values)
        if not own.any() or not set(one.values) <= set(names):
            continue
        targets = tuple(names.index(n) for n in one.values)
        done.append((targets, [one.as_set[n] for n in one.values]))
        groups.append(values[own])
    # Pooled variance within experiments. Three rows' worth of the variance without
    # experiments are added, as most experiments have a single row.
    freedom = sum(len(rows) - 1 for rows in groups)
    squares = sum(float(rows.var()) * len(rows) for rows in groups)
    row_std = float(np.sqrt((squares + 3 * scale**2) / (freedom + 3)))
    points, positions = Points.from_interventions(done)
    mean, error = np.empty(len(done)), np.empty(len(done))
    for i, rows in zip(positions, groups, strict=True):
        mean[i], error[i] = rows.mean(), row_std / np.sqrt(len(rows))
    # `points` are grouped by their variables; `positions` leads from each experiment to
    # its point.
    outcomes = Outcomes(
        points=points,
        mean=mean,
        error=np.maximum(error, 1e-9 * scale),
    )
    return outcomes, row_std
