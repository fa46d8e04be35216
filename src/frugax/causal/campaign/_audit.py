"""Would it have been better to choose otherwise? The campaign replayed where we know.

Each world that agrees with the data stands in for the truth: it gives the observations
and the answers, and its own best intervention is known. All ways to choose may spend
the same.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from frugax.budget import ExperimentBudget
from frugax.causal.data import Samples
from frugax.causal.policy import Policy
from frugax.causal.posterior import (
    LinearModel,
    Points,
    PosteriorSample,
    fit_best_linear_model,
)

from . import _ledger
from ._campaign import Campaign
from ._known import Known
from ._ledger import Entry
from ._settings import Settings
from ._space import grid

WAYS = ("this campaign", "graph + regression", "random", "oracle")
_DRAWS = 512


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Regret of each way to choose, in worlds that agree with the data.

    Attributes:
        regret: by way, the regret in each world after the whole budget, in the target's
            unit: how much worse than that world's best is the mean of the target under
            what the way recommends.
        spent: by way, what it spent in each world.
        covered: share of worlds whose true mean is in the 90 % interval that this
            campaign gave for its recommendation.
    """

    regret: dict[str, tuple[float, ...]]
    spent: dict[str, tuple[float, ...]]
    covered: float


def audit(
    campaign: Campaign, *, worlds: int, progress: Callable[[int], None] = lambda n: None
) -> Audit:
    """Replay a campaign beside other ways to choose, at equal cost.

    Args:
        campaign: stays as it is.
        worlds: in how many of its worlds; >= 1.
        progress: called with the number of worlds done.

    Raises:
        ValueError: no row was told, or there are fewer worlds than that.
    """
    known = campaign.look(whole=True)
    settings = dataclasses.replace(campaign.settings, budget=_without_clock(campaign))
    if campaign.samples is None:
        raise ValueError(
            "nothing is known yet: an audit needs rows to learn worlds from."
        )
    if not 1 <= worlds <= len(known.belief.samples):
        raise ValueError(
            f"worlds must be 1 to {len(known.belief.samples)}, got {worlds}."
        )
    observed = int((~campaign.samples.intervened.any(1)).sum())
    regret: dict[str, list[float]] = {way: [] for way in WAYS}
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    covered = 0
    for i, world in enumerate(known.belief.samples[:worlds]):
        truth = _Truth(world, known, settings, observed, i)
        replayed = truth.campaign(campaign.policy)
        best = replayed.recommend()
        covered += best.low <= truth.mean(best.value) <= best.high
        note = {
            "this campaign": (best.value, replayed.spent),
            "graph + regression": truth.graph_and_regression(),
            "random": truth.random(),
        }
        for way, (values, cost) in note.items():
            regret[way].append(truth.regret(values))
            spent[way].append(cost)
        regret["oracle"].append(0.0)
        spent["oracle"].append(0.0)
        progress(i + 1)
    return Audit(
        regret={way: tuple(each) for way, each in regret.items()},
        spent={way: tuple(each) for way, each in spent.items()},
        covered=covered / worlds,
    )


def _without_clock(campaign: Campaign) -> ExperimentBudget:
    """A budget that pays for as many experiments as its time has allowed."""
    budget = campaign.settings.budget
    if budget.seconds is None:
        return budget
    held = sum(e.status != "refunded" for e in campaign.asks)
    return ExperimentBudget(cost=budget.cost, n=max(held, 1), costs=budget.costs)


class _Truth:
    """A world that stands in for the truth."""

    def __init__(
        self,
        world: PosteriorSample,
        known: Known,
        settings: Settings,
        observed: int,
        number: int,
    ) -> None:
        self.world, self.names, self.number = world, known.names, number
        self.target = known.names.index(settings.target)
        self.sign = 1.0 if settings.minimize else -1.0
        # Edges were believed, not known: a replay must learn them like the campaign.
        self.settings = dataclasses.replace(settings, seed=settings.seed + 1 + number)
        self.rng = np.random.default_rng([settings.seed, number, 9])
        self.noise = self.rng.integers(0, 1 << 30, (len(self.names), _DRAWS))
        self.observed = self._rows({}, max(observed, 1)) if observed else None
        points = grid(self.settings, self.names, np.random.default_rng(0))
        loss = self.sign * self._means(points)
        self.points = points
        self.optimum = float(loss.min())

    def campaign(self, policy: Policy) -> Campaign:
        """The same campaign, asked of this world."""
        made = Campaign.begin(self.settings, policy=policy)
        if self.observed is not None:
            made.tell_observations(self.observed)
        while (ask := made.ask()) is not None:
            made.tell(ask, self._rows(ask.intervention.values, self.settings.rows))
        return made

    def random(self) -> tuple[dict[str, float], float]:
        """Any experiments; what gave the best outcome."""
        best, found, entries = np.inf, dict[str, float](), list[Entry]()
        while (values := self._any(entries)) is not None:
            outcome = self._outcome(self._rows(values, self.settings.rows))
            entries.append(Entry(id=len(entries), values=values, status="answered"))
            if outcome < best or not found:
                best, found = outcome, values
        return found, self._paid(entries)

    def graph_and_regression(self) -> tuple[dict[str, float], float]:
        """The best linear graph; what looks best in it, and every third any."""
        entries, rows = list[Entry](), self.observed
        best: dict[str, float] = {}
        while (values := self._any(entries)) is not None:
            i = len(entries)
            fits = best and _ledger.fits(self.settings.budget, entries, best)
            if i >= 3 and i % 3 and fits:
                values = best
            new = self._rows(values, self.settings.rows)
            rows = new if rows is None else rows.concat(new)
            entries.append(Entry(id=i, values=values, status="answered"))
            model = fit_best_linear_model(
                rows.values.astype(np.float64),
                rows.intervened,
                max_parents=self.settings.max_parents,
            )
            best = self._best_of(model)
        return best, self._paid(entries)

    def mean(self, values: dict[str, float]) -> float:
        """The true mean of the target."""
        where = tuple(self.names.index(n) for n in values)  # none: observing
        at = np.array(list(values.values())).reshape(1, -1)
        return float(
            self.world.predict_means(where, at, [self.target], self.noise)[0, 0]
        )

    def regret(self, values: dict[str, float]) -> float:
        """How much worse than the best; the best is the least that was seen."""
        return max(self.sign * self.mean(values) - self.optimum, 0.0)

    def _best_of(self, model: LinearModel) -> dict[str, float]:
        best, found = np.inf, dict[str, float]()
        for where, values in zip(self.points.targets, self.points.values, strict=True):
            for each in values:
                loss = self.sign * model.predict_mean(where, each, self.target)
                if loss < best:
                    best = loss
                    found = {
                        self.names[v]: float(x)
                        for v, x in zip(where, each, strict=True)
                    }
        return found

    def _any(self, entries: list[Entry]) -> dict[str, float] | None:
        """An affordable set of variables, set anywhere."""
        budget = self.settings.budget
        sets = [
            s
            for s in self.settings.allowed_sets()
            if set(s) <= set(self.names) and _ledger.fits(budget, entries, s)
        ]
        if not sets:
            return None
        chosen = sets[self.rng.integers(len(sets))]
        return {n: float(self.rng.uniform(*self.settings.variables[n])) for n in chosen}

    def _rows(self, values: dict[str, float], rows: int) -> Samples:
        where = [self.names.index(n) for n in values]
        table = self.world.sample(where, list(values.values()), rows, self.rng)
        set_ = np.tile([n in values for n in self.names], (rows, 1))
        return Samples(self.names, table.astype(np.float32), set_)

    def _outcome(self, rows: Samples) -> float:
        return self.sign * float(rows[self.settings.target].mean())

    def _paid(self, entries: list[Entry]) -> float:
        return float(_ledger.paid(self.settings.budget, entries, "answered"))

    def _means(self, points: Points) -> np.ndarray:
        return np.concatenate(
            [
                self.world.predict_means(where, values, [self.target], self.noise)[:, 0]
                for where, values in zip(points.targets, points.values, strict=True)
            ]
        )
