"""A campaign's recommended intervention, its uncertainty, and advice when to stop."""

import dataclasses

import numpy as np
from jaxtyping import Float

from frugax.causal.policy import SURE, Outlook, Value, gain, value_of
from frugax.causal.scm import Intervention, intervene

from ._inference import Inference
from ._settings import CampaignSettings
from .actions import (
    Setting,
    describe_settings,
    list_settings,
    scale_back,
    to_settings,
)

# A recommendation is good within this share of the target's standard deviation.
_TOLERANCE_FRAC = 0.05
# The best of many candidates is often a lucky one, so its interval must be wider.
# Fitted on one problem of each family of benchmarks/causal_problems.py (90 % of the
# intervals hold with 1.26), and checked on two others of seven families (1.31).
_SELECTED = 1.3
# A long rest of the budget does not count in full: nobody waits for it.
_MAX_AHEAD = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The best intervention by everything that is known.

    Attributes:
        intervention: the variables to set, and their values.
        expected: expected mean of the target under it, in the target's unit.
        low: lower end of the 90 % interval of that mean.
        high: upper end of the 90 % interval of that mean.
        prob_optimal: probability that no intervention that is likely to keep the
            constraints is better by more than the tolerance. Where none is likely to
            keep them, also that this one does.
        prob_feasible: probability that it keeps the constraints.
        warning: that no intervention is likely to keep them, or that they were not
            measured; empty if all is well.
        expected_regret: expected distance from the best intervention that is likely to
            keep the constraints, in the target's unit.
        actions: the variables to set, and their values as the laboratory sets them;
            empty to do nothing.
        nothing: expected mean of the target if nothing is done; None without
            observations.
        prob_better: probability that the recommendation is better than doing nothing;
            None without observations.
        goal: the goal of the campaign, such as "a small pain".
    """

    intervention: Intervention
    expected: float
    low: float
    high: float
    prob_optimal: float
    prob_feasible: float
    warning: str
    expected_regret: float
    actions: dict[str, Setting]
    nothing: float | None
    prob_better: float | None
    goal: str

    @property
    def value(self) -> dict[str, float]:
        """The variables to set, and their values."""
        return self.intervention.values

    def __str__(self) -> str:
        text = (
            f"for {self.goal}, {describe_settings(self.actions)}: "
            f"{self.expected:.4g} ({self.low:.4g} "
            f"to {self.high:.4g}); as good as the best with probability "
            f"{self.prob_optimal:.0%}"
        )
        better = ""
        if self.actions and self.prob_better is not None:
            better = (
                f"better than doing nothing ({self.nothing:.4g}) with probability "
                f"{self.prob_better:.0%}"
            )
        return "; ".join(part for part in (text, better, self.warning) if part)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StopAdvice:
    """Whether another experiment is worth its price.

    Attributes:
        stop: whether to stop.
        reason: the reason, in a sentence.
        value: expected improvement from the most valuable experiment that the budget
            pays for; None if it pays for none.
        prob_optimal: probability that the recommendation is good enough.
        goal: the goal of the campaign, such as "a small pain".
    """

    stop: bool
    reason: str
    value: Value | None
    prob_optimal: float
    goal: str

    def __str__(self) -> str:
        return f"{'stop' if self.stop else 'go on'} for {self.goal}: {self.reason}"


def make_recommendation(
    inference: Inference, settings: CampaignSettings
) -> Recommendation:
    """Recommend the intervention that is best on average over the posterior samples."""
    outlook = inference.outlook
    best = outlook.best
    at = zip(*outlook.points.at(best), strict=True)
    values = scale_back(
        {inference.levers[v]: float(x) for v, x in at}, settings.variables
    )
    expected, low, high = prediction_interval(outlook, best, settings)
    least, most = inference.mean_range
    low = max(expected - _SELECTED * (expected - low), least)
    high = min(expected + _SELECTED * (high - expected), most)
    nothing = prob_better = None
    if () in outlook.points.targets:
        baseline = len(outlook.points) - 1
        nothing = float(outlook.loss[:, baseline].mean())
        nothing *= 1 if settings.minimize else -1
        gain = outlook.loss[:, baseline] - outlook.loss[:, best]
        prob_better = _add_doubt(int((gain > 0).sum()), len(gain))
        if best == baseline:
            prob_better = 0.0
    return Recommendation(
        intervention=intervene(**values),
        expected=expected,
        low=low,
        high=high,
        prob_optimal=_estimate_prob_optimal(outlook, inference, settings),
        prob_feasible=float(outlook.allowed[:, best].mean()),
        warning=_describe_constraints(inference, outlook, settings),
        expected_regret=float(_compute_regret(outlook).mean()),
        actions=to_settings(values, settings.variables),
        nothing=nothing,
        prob_better=prob_better,
        goal=settings.goal,
    )


def prediction_interval(
    outlook: Outlook, point: int, settings: CampaignSettings
) -> tuple[float, float, float]:
    """Return the expected mean of the target in an experiment, and its interval."""
    sign = 1 if settings.minimize else -1
    effect = outlook.loss[:, point] * sign
    # Quantiles of a few samples end before the tails do. With this definition another
    # sample would be inside as often as it should (Weibull plotting positions).
    low, high = np.quantile(effect, (0.05, 0.95), method="weibull")
    # A skewed spread can have its mean beyond a quantile.
    expected = float(np.clip(effect.mean(), low, high))
    return expected, float(low), float(high)


def estimate_regret(inference: Inference) -> tuple[float, float]:
    """Return the recommendation's distance from the best, and its 90 % half-width."""
    each = _compute_regret(inference.outlook)
    low, high = np.quantile(each, (0.05, 0.95), method="weibull")
    return float(each.mean()), float(max(high - each.mean(), each.mean() - low))


def give_advice(
    inference: Inference,
    outlook: Outlook,
    settings: CampaignSettings,
    *,
    has_answer: bool,
    is_late: bool,
) -> StopAdvice:
    """Advise whether another experiment is worth its price."""
    prob = _estimate_prob_optimal(outlook, inference, settings)
    notes = ""
    if warning := _describe_constraints(inference, outlook, settings):
        notes += f" Beware: {warning}."
    if inference.imputed:
        usual = scale_back(inference.imputed, settings.variables)
        text = list_settings(to_settings(usual, settings.variables))
        notes += (
            f" Observed rows lack variables that may be set: they count as {text}. If "
            "a value is not the usual one, tell observations with a column for it."
        )
    stop, reason = True, "the budget pays for no more experiments."
    value: Value | None = None
    if is_late:
        reason = "the time is over."
    elif outlook.affordable.any():
        stop, reason, value = _compare(outlook, settings, prob, has_answer=has_answer)
    return StopAdvice(
        stop=stop,
        reason=reason + notes,
        value=value,
        prob_optimal=prob,
        goal=settings.goal,
    )


def _compare(
    outlook: Outlook, settings: CampaignSettings, prob: float, *, has_answer: bool
) -> tuple[bool, str, Value]:
    """Return whether to stop, why, and the worth of the best experiment."""
    # The advice judges by the most valuable experiment, whatever chooses the next one:
    # a policy that explores at random must not end a campaign.
    best = gain(outlook, np.random.default_rng(settings.seed))
    value = value_of(outlook, best)
    # Samples that were drawn from observations alone may agree on a wrong cause, which
    # only an experiment can show.
    if not has_answer:
        return False, "no experiment has given a value of the target yet.", value
    if prob >= settings.confidence:
        reason = (
            "the recommendation is within the tolerance of the best with probability "
            f"{prob:.0%}."
        )
        return True, reason, value
    least = settings.min_gain_per_cost
    if value.per_cost <= least and _is_known_well(outlook, settings):
        reason = (
            f"the best experiment is worth {value.per_cost:.3g} for each unit of cost, "
            f"less than min_gain_per_cost={least:g}."
        )
        return True, reason, value
    reason = f"the best experiment is worth {value.total:.3g} and costs {value.cost:g}."
    return False, reason, value


def _estimate_prob_optimal(
    outlook: Outlook, inference: Inference, settings: CampaignSettings
) -> float:
    """Estimate how likely the recommendation is within the tolerance of the best.

    Only candidates that are likely to keep the constraints compete. Where none is, the
    recommendation must keep them too, however small the target becomes.
    """
    tolerance = settings.tolerance
    if tolerance is None:
        tolerance = _TOLERANCE_FRAC * inference.scale
    good = _compute_regret(outlook) <= tolerance
    feasible = outlook.allowed[:, outlook.best]
    if feasible.mean() < SURE:
        good &= feasible
    return _add_doubt(int(good.sum()), len(good))


def _add_doubt(count: int, total: int) -> float:
    # Half a success and half a failure are added: a few samples that agree are not
    # certainty (Krichevsky-Trofimov estimator).
    return (count + 0.5) / (total + 1)


def _is_known_well(outlook: Outlook, settings: CampaignSettings) -> bool:
    """Return whether even perfect knowledge would not repay the rest of the budget."""
    # The value of one experiment is 0 where two together would find something.
    left = min(outlook.left, _MAX_AHEAD) * float(
        outlook.price[outlook.affordable].min()
    )
    return float(_compute_regret(outlook).mean()) <= settings.min_gain_per_cost * left


def _describe_constraints(
    inference: Inference, outlook: Outlook, settings: CampaignSettings
) -> str:
    """Describe constraints that no candidate keeps or that were never measured."""
    unmeasured = [name for name in settings.constraints if name not in inference.names]
    warnings: list[str] = []
    prob = float(outlook.allowed[:, outlook.best].mean())
    if prob < SURE:
        bounds: list[str] = []
        for name, (low, high) in settings.constraints.items():
            if name in unmeasured:
                continue
            ends = [name]
            if low is not None:
                ends.insert(0, f"{low:g} <=")
            if high is not None:
                ends.append(f"<= {high:g}")
            bounds.append(" ".join(ends))
        warning = (
            f"no experiment is likely to keep {', '.join(bounds)}: the recommendation "
            f"does with probability {prob:.0%}"
        )
        if not prob:
            warning += " and has the smallest violation"
        warnings.append(warning)
    if unmeasured:
        warnings.append(
            f"{', '.join(unmeasured)} was never measured, so its limits do not count "
            "yet"
        )
    return "; ".join(warnings)


def _compute_regret(outlook: Outlook) -> Float[np.ndarray, " samples"]:
    """Compute the recommendation's distance from the best candidate in each sample."""
    # `mean` is infinite where a candidate is unlikely to keep the constraints.
    loss = outlook.loss[:, np.isfinite(outlook.mean)]
    return outlook.loss[:, outlook.best] - loss.min(1)
