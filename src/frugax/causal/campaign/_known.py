"""What a campaign knows: from its rows to worlds, effects and an outlook."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from frugax.causal.data import Samples
from frugax.causal.policy import Outlook, permitted
from frugax.causal.posterior import (
    Discrepancy,
    Domain,
    Points,
    PosteriorEnsemble,
    extrapolation_std,
    importance_resample,
    predictive_check,
    sample_posterior,
)

from ._answering import Answering
from ._chosen import chosen
from ._enough import counted, enough, weights
from ._file import State
from ._ledger import price
from ._measured import not_whole, outcomes_of, scale_of
from ._settings import Settings
from ._space import grid, joined, nearby
from ._usual import usual_values

# So many times more worlds are drawn where experiments must choose among them.
_MORE = 8
_NOISE = (1.0, 0.3, 0.1)  # shares of the outcomes' spread that may be noise
_Limits: TypeAlias = tuple[
    Bool[np.ndarray, "worlds points"], Float[np.ndarray, " points"]
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the rows of a campaign say.

    Attributes:
        names: the variables, in the order of the worlds.
        belief: the worlds.
        outlook: what they say of every experiment.
        deviation: how far the experiments are from the worlds.
        scale: standard deviation of the target.
        one_row: standard deviation of the target in rows of one experiment.
        usual: what variables count as in rows that leave them out.
    """

    names: tuple[str, ...]
    belief: PosteriorEnsemble
    outlook: Outlook
    deviation: Discrepancy
    scale: float
    one_row: float
    usual: dict[str, float]


def look(state: State, table: Samples, *, whole: bool = False) -> Known:
    """Weigh all experiments in the light of all rows.

    Args:
        state: what the campaign was told, and what was found with fewer rows.
        table: all rows, with a column for whatever the settings name.
        whole: whether the worlds need functions for all variables, to sample from.

    Raises:
        ValueError: an edge or a constraint names a variable that no row has.
    """
    settings, entries, of_entry = state.settings, state.entries, state.of_entry
    rng = np.random.default_rng([settings.seed, len(entries), len(table)])
    names = chosen(settings, table)
    table = table.select(names)
    values = table.values.astype(np.float64)
    usual = usual_values(values, table.intervened, names, settings)
    for name, value in usual.items():
        column = values[:, names.index(name)]
        column[np.isnan(column)] = value
    target = names.index(settings.target)
    wanted = [target, *(names.index(name) for name in settings.constraints)]
    ranges = np.array([settings.variables.get(n, (np.nan, np.nan)) for n in names])
    observed = of_entry < 0
    basis = Domain.from_data(values, observed, ranges[:, 0], ranges[:, 1])
    # A forbidden edge of what is not weighed is in no world anyway.
    required, forbidden = (
        [(names.index(a), names.index(b)) for a, b in pairs if {a, b} <= {*names}]
        for pairs in (settings.required, settings.forbidden)
    )
    # Graphs are compared on whole rows; other experiments choose among the worlds.
    apart = not_whole(settings, values, wanted, of_entry, entries, names)
    some = enough(values, of_entry, settings.seed)
    belief = sample_posterior(
        values[some],
        table.intervened[some],
        basis,
        count=settings.worlds * (_MORE if apart else 1),
        rng=rng,
        max_parents=settings.max_parents,
        hyperparameters=state.shapes if state.shaped == names else None,
        outputs=None if whole else wanted,
        required=required,
        forbidden=forbidden,
        row_weights=weights(of_entry[some]),
    )
    scale = scale_of(values[:, target], observed)
    outcomes, one_row = outcomes_of(
        settings,
        values[:, target],
        of_entry,
        entries,
        names,
        scale,
        counted=None if apart else counted(some, ~table.intervened[:, target]),
    )
    if apart:
        # Without observations the outcomes' spread is noise and effects together.
        blind = not np.isfinite(values[observed, target]).any()
        belief, share = importance_resample(
            belief,
            apart,
            basis,
            count=settings.worlds,
            rng=rng,
            error_fracs=_NOISE if blind else (1.0,),
        )
        outcomes = dataclasses.replace(outcomes, error=share * outcomes.error)
    worlds = Answering(belief, wanted, outcomes, basis, scale, rng, apart=bool(apart))

    def limits(said: Float[np.ndarray, "worlds points wanted"]) -> _Limits:
        return _limits(
            said, settings, [scale_of(values[:, v], observed) for v in wanted]
        )

    sign = 1.0 if settings.minimize else -1.0
    points = grid(settings, names, rng)
    said = worlds.said(points)
    # A grid over several variables is coarse: look twice around what promises most.
    for _ in range(min(max(map(len, points.targets)), 2)):
        likely = worlds.agreed(said[:, :, 0], points)
        centres = _promising(sign * likely, *limits(said))
        more = nearby(points, centres, settings, names, rng)
        points, said = _with(points, said, more, worlds.said)
    under_way = [
        (tuple(names.index(n) for n in e.values), np.array(list(e.values.values())))
        for e in entries
        if e.status == "pending" and set(e.values) <= set(names)
    ]
    points, said = _with(
        points, said, Points.from_interventions(under_way)[0], worlds.said
    )
    loss = sign * worlds.agreed(said[:, :, 0], points)
    # What is explained of the experiments must not be added once more.
    explained = worlds.agreed(worlds.at_experiments, outcomes.points)
    shift, unsure = extrapolation_std(points, explained.mean(0), outcomes, basis, scale)
    allowed, breach = limits(said)
    reached = np.full(len(loss), np.inf)
    for where, values_set in under_way:
        at = _position(points, where, values_set)
        reached = np.minimum(reached, np.where(allowed[:, at], loss[:, at], np.inf))
    # Where only their number is limited, each experiment costs one of it.
    budget = settings.budget
    prices = [
        1.0 if budget.cost is None else float(price(budget, [names[v] for v in w]))
        for w in points.targets
    ]
    outlook = Outlook(
        points=points,
        loss=loss,
        allowed=allowed,
        price=np.array(prices)[points.group],
        affordable=np.ones(len(points), bool),
        causes=belief.graphs[:, target],
        reached=reached,
        shift=sign * shift,
        doubt=unsure,
        misfit=predictive_check(points, outcomes, basis, scale),
        breach=breach,
        noise=max(one_row / np.sqrt(settings.rows), 1e-9 * scale),
        done=outcomes.points,
    )
    return Known(
        names=names,
        belief=belief,
        outlook=outlook,
        deviation=worlds.deviation,
        scale=scale,
        one_row=one_row,
        usual=usual,
    )


def _limits(
    said: Float[np.ndarray, "worlds points wanted"],
    settings: Settings,
    scales: Sequence[float],
) -> _Limits:
    """Where each world keeps the constraints, and how far they are broken on average.

    In standard deviations of what they are about; the first of what is said is the
    target.
    """
    beyond = np.zeros(said.shape[:2])
    for i, (low, high) in enumerate(settings.constraints.values(), start=1):
        below = -np.inf if low is None else low - said[:, :, i]
        above = -np.inf if high is None else said[:, :, i] - high
        beyond += np.maximum(np.maximum(below, above), 0.0) / scales[i]
    return beyond == 0, beyond.mean(0)


def _promising(
    loss: Float[np.ndarray, "worlds points"],
    allowed: Bool[np.ndarray, "worlds points"],
    breach: Float[np.ndarray, " points"],
) -> list[int]:
    """Points around which to look more closely."""
    mean = np.where(permitted(allowed, breach), loss.mean(0), np.inf)
    hoped = np.where(allowed, np.maximum(mean.min() - loss, 0), 0.0).mean(0)
    each = np.where(allowed, loss, np.inf).argmin(1)
    centres = [*np.argsort(mean)[:3], *np.argsort(-hoped)[:3], *each[:4]]
    return [int(c) for c in centres]


def _with(
    points: Points,
    said: Float[np.ndarray, "worlds points wanted"],
    more: Points,
    ask: Callable[[Points], Float[np.ndarray, "worlds more wanted"]],
) -> tuple[Points, Float[np.ndarray, "worlds all wanted"]]:
    """Points and what the worlds say of them, with some more of both."""
    if not len(more):
        return points, said
    both, answered = joined(points, more), ask(more)
    parts: list[np.ndarray] = []
    for where in both.targets:
        for some, say in ((points, said), (more, answered)):
            if where in some.targets:
                parts.append(say[:, some.group == some.targets.index(where)])
    return both, np.concatenate(parts, axis=1)


def _position(
    points: Points, where: tuple[int, ...], values: Float[np.ndarray, " places"]
) -> int:
    g = points.targets.index(where)
    inside = np.argmin(np.abs(points.values[g] - values).sum(1))
    return int(np.flatnonzero(points.group == g)[0] + inside)
