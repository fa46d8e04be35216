"""`audit`: compare a campaign's regret with baselines', simulated at equal cost.

Posterior samples stand in for the truth. Each provides the observations and the
answers, and its own best intervention is known. All strategies may spend the same.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from frugax.budget import ExperimentBudget
from frugax.causal.data import Samples
from frugax.causal.policy import Policy
from frugax.causal.posterior import (
    LinearModel,
    PosteriorSample,
    fit_best_linear_model,
)

from ._campaign import Campaign
from ._experiments import ExperimentRecord, add_costs, is_affordable
from ._inference import Inference
from ._settings import CampaignSettings
from .candidates import make_grid

STRATEGIES = ("this campaign", "graph + regression", "random", "oracle")
# Draws of the noise behind each true mean. All strategies share them, so that they
# differ by their choices alone.
_NUM_DRAWS = 512


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CampaignAudit:
    """Regret of each strategy, with posterior samples as the truth.

    Attributes:
        regret: for each strategy its regret in each sample after the whole budget, in
            the target's unit: the distance of the target's mean under its
            recommendation from the best mean.
        spent: for each strategy its cost in each sample.
        coverage: share of samples whose true mean is in the 90 % interval that this
            campaign gave for its recommendation.
    """

    regret: dict[str, tuple[float, ...]]
    spent: dict[str, tuple[float, ...]]
    coverage: float


def audit(
    campaign: Campaign,
    *,
    num_samples: int,
    progress: Callable[[int], None] = lambda count: None,
) -> CampaignAudit:
    """Replay a campaign beside other strategies, at equal cost.

    Args:
        campaign: the campaign, which stays as it is.
        num_samples: number of posterior samples that stand in for the truth; >= 1.
        progress: called with the number of samples done.

    Raises:
        ValueError: the campaign has no rows, or fewer posterior samples.
    """
    inference = campaign.infer(full=True)
    # Replayed experiments take no time, so a limit of seconds would limit nothing.
    budget = _remove_time_limit(campaign)
    # Its samples, from which the rows of a replay come, are on the scale of models.
    settings = dataclasses.replace(campaign.settings, budget=budget).on_model_scale()
    if campaign.samples is None:
        raise ValueError(
            "this campaign has no rows to learn models from: tell some before an audit."
        )
    available = len(inference.ensemble.samples)
    if not 1 <= num_samples <= available:
        raise ValueError(f"num_samples must be 1 to {available}, got {num_samples}.")
    num_observed = int((~campaign.samples.intervened.any(1)).sum())
    regret: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    spent: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    covered = 0
    for i, sample in enumerate(inference.ensemble.samples[:num_samples]):
        # Each replay sees only rows that its sample generates, never those of the
        # campaign: it must find the optimum of that sample from nothing.
        replay = _Replay(sample, inference, settings, num_observed, i)
        replayed = replay.run_campaign(campaign.policy)
        best = replayed.recommend()
        covered += best.low <= replay.compute_mean(best.value) <= best.high
        results = {
            "this campaign": (best.value, replayed.spent),
            "graph + regression": replay.run_graph_and_regression(),
            "random": replay.run_random(),
        }
        for name, (values, cost) in results.items():
            regret[name].append(replay.compute_regret(values))
            spent[name].append(cost)
        # The oracle knows the truth, so it needs no experiments and loses nothing.
        regret["oracle"].append(0.0)
        spent["oracle"].append(0.0)
        progress(i + 1)
    return CampaignAudit(
        regret={name: tuple(each) for name, each in regret.items()},
        spent={name: tuple(each) for name, each in spent.items()},
        coverage=covered / num_samples,
    )


def _remove_time_limit(campaign: Campaign) -> ExperimentBudget:
    """Return a budget for as many experiments as the campaign's time has allowed."""
    budget = campaign.settings.budget
    if budget.seconds is None:
        return budget
    count = sum(one.status != "refunded" for one in campaign.experiments)
    return ExperimentBudget(cost=budget.cost, n=max(count, 1), costs=budget.costs)


class _Replay:
    """A posterior sample that stands in for the truth."""

    def __init__(
        self,
        sample: PosteriorSample,
        inference: Inference,
        settings: CampaignSettings,
        num_observed: int,
        number: int,
    ) -> None:
        self._sample, self._names = sample, inference.names
        self._target = self._names.index(settings.target)
        self._sign = 1.0 if settings.minimize else -1.0
        # The graph was inferred: a replay must infer it again, like the campaign.
        self._settings = dataclasses.replace(settings, seed=settings.seed + 1 + number)
        self._rng = np.random.default_rng([settings.seed, number, 9])
        self._noise = self._rng.integers(0, 1 << 30, (len(self._names), _NUM_DRAWS))
        self._observed: Samples | None = None
        if num_observed:
            self._observed = self._sample_rows({}, num_observed)
        points = make_grid(self._settings, self._names, np.random.default_rng(0))
        self._points = points
        # The grid is coarse: a strategy may find a better point, and its regret is 0.
        self._optimum = min(
            float((self._sign * self._predict(targets, values)).min())
            for targets, values in zip(points.targets, points.values, strict=True)
        )

    def run_campaign(self, policy: Policy) -> Campaign:
        """Run the same campaign on this sample."""
        campaign = Campaign.begin(self._settings, policy=policy)
        if self._observed is not None:
            campaign.tell_observations(self._observed)
        count = self._settings.rows_per_experiment
        while (one := campaign.ask()) is not None:
            campaign.tell(one, self._sample_rows(one.intervention.values, count))
        return campaign

    def run_random(self) -> tuple[dict[str, float], float]:
        """Do random experiments, and recommend the one with the best outcome."""
        best, found = np.inf, dict[str, float]()
        records: list[ExperimentRecord] = []
        while (values := self._sample_experiment(records)) is not None:
            rows = self._do(records, values)
            # Without a model the best outcome is all that can be recommended, although
            # noise flatters it (the winner's curse).
            outcome = self._sign * float(rows[self._settings.target].mean())
            if outcome < best or not found:
                best, found = outcome, values
        return found, self._add_costs(records)

    def run_graph_and_regression(self) -> tuple[dict[str, float], float]:
        """Do the best experiment of the best linear model, and a third at random."""
        records: list[ExperimentRecord] = []
        best, rows = dict[str, float](), self._observed
        while (values := self._sample_experiment(records)) is not None:
            i = len(records)
            # Three random experiments come first, as a model of one row is arbitrary;
            # then a third at random keeps the regression from repeating one point.
            if (
                i >= 3
                and i % 3
                and best
                and is_affordable(self._settings.budget, records, best)
            ):
                values = best
            new = self._do(records, values)
            rows = new if rows is None else rows.concat(new)
            model = fit_best_linear_model(
                rows.values.astype(np.float64),
                rows.intervened,
                max_parents=self._settings.max_parents,
            )
            best = self._find_best(model)
        return best, self._add_costs(records)

    def compute_mean(self, values: dict[str, float]) -> float:
        """Compute the true mean of the target; without values, that of observations."""
        kept = self._keep_modelled(values)
        targets = tuple(self._names.index(n) for n in kept)
        at = np.array(list(kept.values())).reshape(1, -1)
        return float(self._predict(targets, at)[0])

    def _keep_modelled(self, values: dict[str, float]) -> dict[str, float]:
        return {n: x for n, x in values.items() if n in self._names}

    def compute_regret(self, values: dict[str, float]) -> float:
        """Compute the distance from the best mean on the grid."""
        return max(self._sign * self.compute_mean(values) - self._optimum, 0.0)

    def _find_best(self, model: LinearModel) -> dict[str, float]:
        best, found = np.inf, dict[str, float]()
        points = self._points
        for targets, values in zip(points.targets, points.values, strict=True):
            for each in values:
                loss = self._sign * model.predict_mean(targets, each, self._target)
                if loss < best:
                    names = [self._names[v] for v in targets]
                    best, found = loss, dict(zip(names, each.tolist(), strict=True))
        return found

    def _sample_experiment(
        self, records: list[ExperimentRecord]
    ) -> dict[str, float] | None:
        """Draw a point of the grid at random; None if the budget pays for none."""
        names = [[self._names[v] for v in each] for each in self._points.targets]
        fits = [is_affordable(self._settings.budget, records, each) for each in names]
        if not any(fits):
            return None
        group = int(self._rng.choice(np.flatnonzero(fits)))
        at = self._rng.choice(self._points.values[group])
        return dict(zip(names[group], at.tolist(), strict=True))

    def _do(self, records: list[ExperimentRecord], values: dict[str, float]) -> Samples:
        """Do an experiment, record it, and return its rows."""
        rows = self._sample_rows(values, self._settings.rows_per_experiment)
        records.append(
            ExperimentRecord(id=len(records), values=values, status="answered")
        )
        return rows

    def _sample_rows(self, values: dict[str, float], rows: int) -> Samples:
        # In a sample, setting a variable that was not modelled changes nothing.
        kept = self._keep_modelled(values)
        targets = [self._names.index(n) for n in kept]
        table = self._sample.sample(targets, list(kept.values()), rows, self._rng)
        intervened = np.tile([n in values for n in self._names], (rows, 1))
        return Samples(self._names, table.astype(np.float32), intervened)

    def _add_costs(self, records: list[ExperimentRecord]) -> float:
        return float(add_costs(self._settings.budget, records, "answered"))

    def _predict(self, targets: tuple[int, ...], values: np.ndarray) -> np.ndarray:
        return self._sample.predict_means(targets, values, [self._target], self._noise)[
            :, 0
        ]
