"""What to recommend, how sure that is, and whether another experiment is worth it."""

import numpy as np
from jaxtyping import Float

from frugax.causal.policy import POLICIES, SURE, Outlook, value_of
from frugax.causal.scm import intervene

from ._known import Known
from ._results import Advice, Recommendation
from ._settings import Settings
from ._usual import note

# Of a standard deviation of the target: so much worse than the best is still good.
_TOLERANCE = 0.05
# Worlds are wrong in the same way now and then. Fitted on models with network
# mechanisms, checked on others: benchmarks/causal_optimise.py.
_CAUTION = 2.0
_NORMAL = 1.645  # standard deviations on either side of a normal 90 % interval


def recommendation(known: Known, settings: Settings) -> Recommendation:
    """The intervention that is best on average over the worlds.

    Args:
        known: the worlds, and what they say of every experiment.
        settings: of the campaign.
    """
    outlook = known.outlook
    best = outlook.best
    where, values = outlook.points.at(best)
    names = [known.names[v] for v in where]
    expected, low, high = interval(outlook, best, settings)
    return Recommendation(
        intervention=intervene(**dict(zip(names, map(float, values), strict=True))),
        expected=expected,
        low=low,
        high=high,
        right=_right(outlook, known, settings),
        keeps=float(outlook.allowed[:, best].mean()),
        warning=_warning(known, outlook, settings),
        regret=float(_behind(outlook).mean()),
    )


def interval(
    outlook: Outlook, point: int, settings: Settings
) -> tuple[float, float, float]:
    """The target's mean in an experiment, and the 90 % interval of that mean."""
    effect = outlook.loss[:, point] * (1 if settings.minimize else -1)
    # So few worlds end before the tails do: this way one more would be in between as
    # often as it should.
    low, high = np.quantile(effect, (0.05, 0.95), method="weibull")
    # A lopsided spread can have its mean beyond a quantile.
    expected = float(np.clip(effect.mean(), low, high))
    beyond = _NORMAL * float(outlook.doubt[point])
    low = expected - float(np.hypot(expected - low, beyond))
    return expected, low, expected + float(np.hypot(high - expected, beyond))


def advice(
    known: Known, outlook: Outlook, settings: Settings, *, answered: bool, late: bool
) -> Advice:
    """Whether another experiment is worth its price.

    Args:
        known: the worlds.
        outlook: what they say, with the experiments that can still be paid.
        settings: of the campaign.
        answered: whether an experiment gave a value of the target.
        late: whether the campaign's time is over.
    """
    right = _right(outlook, known, settings)
    warning = _warning(known, outlook, settings)
    broken = f" Beware: {warning}." if warning else ""
    broken += note(known.usual, settings)
    if late or not outlook.affordable.any():
        what = (
            "the time is over." if late else "the budget pays for no more experiments."
        )
        why = f"{what}{broken}"
        return Advice(stop=True, why=why, value=None, right=right)
    best = POLICIES["gain"](outlook, np.random.default_rng(settings.seed))
    value = value_of(outlook, best)
    if not answered:
        stop, why = False, "no experiment has given a value of the target yet."
    elif right >= settings.sure:
        stop = True
        why = (
            "the recommendation is within the tolerance of the best with probability "
            f"{right:.0%}."
        )
    elif value.per_cost <= settings.worth:
        stop = True
        why = (
            f"the best experiment is worth {value.per_cost:.3g} for each unit of cost, "
            f"and {settings.worth:g} is wanted."
        )
    else:
        stop = False
        why = (
            f"the best experiment is worth {value.total:.3g} and costs {value.cost:g}."
        )
    return Advice(stop=stop, why=why + broken, value=value, right=right)


def _right(outlook: Outlook, known: Known, settings: Settings) -> float:
    """Probability that nothing that may be recommended is better by the tolerance.

    What may be is what is likely to keep the constraints. Where nothing is, the
    recommendation must keep them too, however small the target becomes.

    The share of worlds that say so, to a power that makes it come true as often as it
    says; and never quite 1, as there are only so many worlds.
    """
    told = settings.tolerance
    tolerance = _TOLERANCE * known.scale if told is None else told
    good = _behind(outlook) <= tolerance
    kept = outlook.allowed[:, outlook.best]
    if kept.mean() < SURE:
        good &= kept
    return ((int(good.sum()) + 0.5) / (len(good) + 1)) ** _CAUTION


def _warning(known: Known, outlook: Outlook, settings: Settings) -> str:
    """What is wrong with the constraints: nothing keeps them, or nobody measured."""
    silent = [name for name in settings.constraints if name not in known.names]
    unknown = (
        f"{', '.join(silent)} was never measured, so its limits do not count yet"
        if silent
        else ""
    )
    keeps = float(outlook.allowed[:, outlook.best].mean())
    if keeps >= SURE:
        return unknown
    bounds: list[str] = []
    for name, (low, high) in settings.constraints.items():
        if name in silent:
            continue
        below = "" if low is None else f"{low:g} <= "
        above = "" if high is None else f" <= {high:g}"
        bounds.append(f"{below}{name}{above}")
    least = "" if keeps else " and breaks least"
    return (
        f"nothing is likely to keep {', '.join(bounds)}: the recommendation does with "
        f"probability {keeps:.0%}{least}{'; ' if unknown else ''}{unknown}"
    )


def _behind(outlook: Outlook) -> Float[np.ndarray, " worlds"]:
    """By how much what may be recommended is better, in every world."""
    loss = outlook.loss[:, np.isfinite(outlook.mean)]
    return outlook.loss[:, outlook.best] - loss.min(1)
