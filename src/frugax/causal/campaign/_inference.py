"""Bayesian inference from a campaign's rows: posterior samples and predictions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.data import Samples
from frugax.causal.policy import Outlook
from frugax.causal.posterior import (
    Domain,
    Points,
    PosteriorEnsemble,
    rbf_kernel,
    sample_posterior,
)

from ._experiments import add_prices
from ._settings import CampaignSettings
from ._state import CampaignState
from .actions import Action, Logarithmic
from .belief import Belief, usual_mean
from .candidates import make_grid, refine_grid, select_promising
from .preparation import (
    estimate_scale,
    find_imputed_values,
    find_mean_range,
    graph_row_weights,
    number_past_experiments,
    select_variables,
    subsample_rows,
    summarize_outcomes,
)

# Without observations the variance of the outcomes is noise and effects together; this
# is the share of their standard deviation that counts as noise at first. With 1 the
# recommendation of a chain of three was expected 1.6 off instead of 0.15, after six
# numbers (three seeds of tests/causal/chain_campaigns.py).
_BLIND_NOISE_FRAC = 0.3
# Half-widths of a range within which one experiment repeats another.
_REPEAT_LENGTH = 0.15
# Half-widths within which a failed experiment makes others likely to fail, and the
# outcomes that the expectation to succeed is worth.
_FAILURE_LENGTH, _PRIOR_SUCCESSES = 0.3, 1.0
_MAX_LEVELS = 12  # of a variable with a few values: each is another experiment
_Predictions: TypeAlias = Float[np.ndarray, "samples points outputs"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """Everything that follows from the rows of a campaign."""

    names: tuple[str, ...]  # of the models
    # The variables by the positions in `outlook.points`: those of the models, then
    # those that may be set but were not selected for the models.
    levers: tuple[str, ...]
    ensemble: PosteriorEnsemble
    outlook: Outlook
    scale: float  # standard deviation of the target
    row_std: float  # that in rows of one experiment
    imputed: dict[str, float]  # values that count in rows that lack them
    mean_range: tuple[float, float]  # possible means of the target


class _Candidates:
    """Candidate experiments and their predictions, which grow together."""

    def __init__(self, belief: Belief, points: Points) -> None:
        self._belief = belief
        self.points, self.predictions = points, belief.predict(points)

    def extend(self, more: Points) -> None:
        if not len(more):
            return
        parts = (self.points, self.predictions), (more, self._belief.predict(more))
        both = self.points.merge(more)
        # Merged points are sorted by group, so their predictions must be, too.
        self.predictions = np.concatenate(
            [
                predictions[:, points.group == points.targets.index(targets)]
                for targets in both.targets
                for points, predictions in parts
                if targets in points.targets
            ],
            axis=1,
        )
        self.points = both


def infer(state: CampaignState, table: Samples) -> Inference:
    """Draw posterior samples from all rows, and predict every candidate experiment.

    The order of the draws is part of the file format in effect: a saved campaign goes
    on with the same questions only if all of them stay in this order.
    """
    settings, experiments, ids = state.settings, state.experiments, state.experiment_ids
    # Seeded by the state and not by the number of calls: a campaign that was loaded
    # infers the same as one that never stopped.
    rng = np.random.default_rng([settings.seed, len(experiments), len(table)])
    names = select_variables(settings, table)
    # Models hold a limited number of variables, but every variable that may be set is
    # asked for: a model predicts that setting one it lacks changes nothing, and the
    # process over experiments predicts the rest.
    levers = (*names, *sorted({*settings.variables} - {*names}))
    observed = np.asarray(~table.intervened.any(1))
    # Which mechanism an unmodelled lever changes is unknown, so that its rows say
    # nothing of mechanisms; their means still count as outcomes.
    others = [i for i, name in enumerate(table.variables) if name not in names]
    modelled = np.asarray(~table.intervened[:, others].any(1))
    order = _sort_rows(table, ids)
    table, ids, observed = table.rows(order), ids[order], observed[order]
    modelled = modelled[order]
    table = table.select(levers)
    values = table.values.astype(np.float64)
    ids, experiments = number_past_experiments(
        settings, values, table.intervened, ids, experiments, levers
    )
    imputed = find_imputed_values(values, table.intervened, names, settings)
    for name, value in imputed.items():
        column = values[:, names.index(name)]
        column[np.isnan(column)] = value
    target = names.index(settings.target)
    outputs = [target, *(names.index(name) for name in settings.constraints)]
    # NaN where a variable may not be set: its range is that of the data.
    ranges = np.array([settings.ranges.get(n, (np.nan, np.nan)) for n in levers])
    domain = Domain.from_data(values, observed, ranges[:, 0], ranges[:, 1])
    # Graphs are compared on complete rows; the outcomes of all condition the process.
    inside = slice(len(names))
    used = subsample_rows(values[:, inside], ids, settings.seed) & modelled
    ensemble = sample_posterior(
        values[used, inside],
        table.intervened[used, inside],
        domain,
        count=settings.num_posterior_samples,
        rng=rng,
        outputs=outputs,
        row_weights=graph_row_weights(ids[used]),
        required=_index_edges(settings.required, names),
        forbidden=[
            *_index_edges(settings.forbidden, names),
            *_forbid_causes_of_listed(settings, names),
        ],
    )
    scale = estimate_scale(values[:, target], observed)
    outcomes, row_std = summarize_outcomes(
        values[:, target], ids, experiments, levers, scale
    )
    if not np.isfinite(values[observed, target]).any():
        row_std *= _BLIND_NOISE_FRAC
        outcomes = dataclasses.replace(
            outcomes, error=_BLIND_NOISE_FRAC * outcomes.error
        )
    scales = [estimate_scale(values[:, v], observed) for v in outputs]
    # Losses are minimized from here on: a target to make large changes its sign once.
    sign = 1.0 if settings.minimize else -1.0
    pending, failed = (
        Points.from_interventions(
            [
                (tuple(levers.index(n) for n in one.values), list(one.values.values()))
                for one in experiments
                if one.status == status
            ]
        )[0]
        for status in ("pending", "failed")
    )
    usual = [
        usual_mean(values[observed, v], each)
        for v, each in zip(outputs, scales, strict=True)
    ]
    belief = Belief(
        settings,
        levers,
        values[observed],
        outcomes,
        usual[0],
        scale,
        ensemble,
        outputs,
        rng,
        has_models=bool(np.isfinite(values[used, inside]).all(1).any()),
    )
    # Passive rows do not show how much rows of an experiment vary.
    row_std = belief.noise * row_std
    candidates = _Candidates(belief, make_grid(settings, levers, rng))
    # A grid over several variables is coarse: refine it twice where most is expected.
    for _ in range(min(max(map(len, candidates.points.targets)), 2)):
        drawn = candidates.predictions
        limits = _check_constraints(drawn, settings, scales)
        centres = select_promising(sign * drawn[:, :, 0], *limits)
        points = candidates.points
        candidates.extend(refine_grid(points, centres, settings, levers, rng))
    # Pending experiments are rarely on the grid; as candidates they get their own
    # predictions.
    candidates.extend(pending)
    predictions = candidates.predictions
    tried = candidates.points
    # Two experiments within a twentieth of a range are one experiment repeated.
    before = outcomes.points.merge(pending)
    actions = {levers.index(n): each for n, each in settings.variables.items()}
    one, other, done, lost = (
        _separate_levels(each, actions, domain)
        for each in (tried, before, outcomes.points, failed)
    )
    repeats = rbf_kernel(one, other, domain, _REPEAT_LENGTH).sum(1)
    success = _estimate_success(one, done, lost, domain)
    points = tried
    if None not in usual:
        # Doing nothing is the first alternative to any intervention, and the
        # observations are its outcome. It is never asked for.
        points = Points((*tried.targets, ()), (*tried.values, np.empty((1, 0))))
        mean, error = np.array(usual, float).T
        nothing = mean + error * rng.standard_normal((len(predictions), len(mean)))
        predictions = np.concatenate([predictions, nothing[:, None]], axis=1)
        repeats, success = np.append(repeats, 0.0), np.append(success, 1.0)
    mean_range = find_mean_range(values[:, target])
    predictions[:, :, 0] = predictions[:, :, 0].clip(*mean_range)
    loss = sign * predictions[:, :, 0]
    allowed, breach = _check_constraints(predictions, settings, scales)
    # Pending experiments count as done, with the mean that each sample predicts: a
    # second question must not ask for the same improvement again.
    reached = np.full(len(loss), np.inf)
    for targets, set_values in map(pending.at, range(len(pending))):
        at = points.find_nearest(targets, set_values)
        reached = np.minimum(reached, np.where(allowed[:, at], loss[:, at], np.inf))
    prices = np.ones(len(points.targets))
    if settings.budget.cost is not None:
        # Where only the number of experiments is limited, each costs one of them.
        prices = np.array(
            [
                # Nothing has no price, and a price divides.
                float(add_prices(settings.budget, [levers[v] for v in targets])) or 1.0
                for targets in points.targets
            ]
        )
    outlook = Outlook(
        points=points,
        loss=loss,
        allowed=allowed,
        price=prices[points.group],
        affordable=np.ones(len(points), bool),
        reached=reached,
        breach=breach,
        noise=max(row_std / np.sqrt(settings.rows_per_experiment), 1e-9 * scale),
        done=outcomes.points,
        repeats=repeats,
        success=success,
        asked=len(state.experiments),
    )
    return Inference(
        names=names,
        levers=levers,
        ensemble=ensemble,
        outlook=outlook,
        scale=scale,
        row_std=row_std,
        imputed=imputed,
        mean_range=mean_range,
    )


def _sort_rows(table: Samples, ids: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Order rows by their experiment and values, in whatever order they were told.

    The order decides how sums are rounded and which rows are drawn, and with these the
    next question: equal rows must give equal figures whatever their history.
    """
    names = sorted(table.variables, reverse=True)
    columns = [table.index(name) for name in names]
    marks = [table.intervened[:, j] for j in columns]
    return np.lexsort((*marks, *(table.values[:, j] for j in columns), ids))


def _separate_levels(
    points: Points, actions: Mapping[int, Action], domain: Domain
) -> Points:
    """Move the values of a short list apart: to try one says nothing of the next."""
    found = [values.copy() for values in points.values]
    for targets, values in zip(points.targets, found, strict=True):
        for i, v in enumerate(targets):
            action = actions[v]
            if not isinstance(action, tuple | Logarithmic):
                codes = action.codes
                step = 0.5 if len(codes) <= _MAX_LEVELS else 2 / (len(codes) - 1)
                ranks = np.searchsorted(codes, values[:, i])
                values[:, i] = step * ranks * domain.half_width[v]
    return Points(points.targets, tuple(found))


def _estimate_success(
    points: Points, done: Points, failed: Points, domain: Domain
) -> Float[np.ndarray, " points"]:
    """Estimate the probability that each experiment gives data.

    One of its values may make an experiment fail, or all of them together: the least
    share of successes among experiments that set them alike counts.
    """
    found: list[np.ndarray] = []
    for targets, values in zip(points.targets, points.values, strict=True):
        found.append(np.ones(len(values)))
        for part in dict.fromkeys([*((v,) for v in targets), targets]):
            if part:
                at = values[:, [targets.index(v) for v in part]]
                good = _PRIOR_SUCCESSES + _count_near(at, part, done, domain)
                bad = _count_near(at, part, failed, domain)
                found[-1] = np.minimum(found[-1], good / (good + bad))
    return np.concatenate(found)


def _count_near(
    values: Float[np.ndarray, "points part"],
    part: tuple[int, ...],
    others: Points,
    domain: Domain,
) -> Float[np.ndarray, " points"]:
    """Count the experiments that set some variables to nearly these values."""
    count = np.zeros(len(values))
    for where, set_values in zip(others.targets, others.values, strict=True):
        if {*part} <= {*where}:
            apart = values[:, None] - set_values[:, [where.index(v) for v in part]]
            apart = apart / domain.half_width[list(part)] / _FAILURE_LENGTH
            count += np.exp(-0.5 * (apart**2).sum(2)).sum(1)
    return count


def _index_edges(
    edges: Sequence[tuple[str, str]], names: tuple[str, ...]
) -> list[tuple[int, int]]:
    # A forbidden edge of a variable that was not selected is in no graph anyway.
    return [(names.index(a), names.index(b)) for a, b in edges if {a, b} <= {*names}]


def _forbid_causes_of_listed(
    settings: CampaignSettings, names: tuple[str, ...]
) -> list[tuple[int, int]]:
    """List the edges to settable variables that have a few values only.

    Under a normal likelihood a category that decides the target would be taken for its
    effect, as its few values leave no noise.
    """
    required = set(_index_edges(settings.required, names))
    listed = [
        names.index(n)
        for n, action in settings.variables.items()
        if n in names
        and not isinstance(action, tuple | Logarithmic)
        and len(action.codes) <= _MAX_LEVELS
    ]
    edges = {(u, v) for v in listed for u in range(len(names)) if u != v}
    return sorted(edges - required)


def _check_constraints(
    predictions: _Predictions, settings: CampaignSettings, scales: Sequence[float]
) -> tuple[Bool[np.ndarray, "samples points"], Float[np.ndarray, " points"]]:
    """Return where samples keep the constraints, and the mean violation.

    Violations count in standard deviations of their variables; the first output is the
    target, which has no constraint.
    """
    violation = np.zeros(predictions.shape[:2])
    for i, (low, high) in enumerate(settings.constraints.values(), start=1):
        below = above = np.full(violation.shape, -np.inf)
        if low is not None:
            below = low - predictions[:, :, i]
        if high is not None:
            above = predictions[:, :, i] - high
        violation += np.maximum(np.maximum(below, above), 0.0) / scales[i]
    return violation == 0, violation.mean(0)
