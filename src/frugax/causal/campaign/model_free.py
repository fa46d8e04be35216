"""Gaussian process forecasts without a causal graph, and the causal models' weight."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from frugax.causal.posterior import (
    ActionProcess,
    ActionSpace,
    Domain,
    Outcomes,
    Points,
    PosteriorEnsemble,
    predict_means,
    sample_posterior,
)

from ._experiments import ExperimentRecord
from ._settings import CampaignSettings
from ._state import OBSERVED
from .actions import Categorical, Grid
from .preparation import graph_row_weights

# Prior probability of the causal models of all rows. The process knows those of passive
# data, too, so that less depends on it than it seems. Without the former, no experiment
# teaches a mechanism: on the thirteen campaigns `1` of `make golden PART=causal` mean
# regret was 0.81 instead of 0.57 (by 0.24 +- 0.14), and the last 0.50 instead of 0.09.
_PRIOR = 0.3
# Neither kind is ever certain: the causal models know more than any outcome can show,
# and only the others expect an effect where no data are.
_LEAST, _MOST = 0.2, 0.5
# Far outside of the data functions are guesses; in standard deviations of the target.
_MOST_EFFECT = 10.0
# A draw goes no further than this from the usual mean, or twice as far as any outcome.
# Few draws have much larger effects, at whatever untried lever; their gain would choose
# each experiment. Chosen on five laboratories of their own (docs/maintainers.md).
_MOST_DRAWN = 4.0
# An earlier experiment counts this much less: wrong causal models have learned from
# it since (forgetting factors: Raftery, Kárný & Ettler 2010, Technometrics 52:52-66).
_FORGET = 0.9


def causal_share(
    experiments: Sequence[ExperimentRecord],
    means: Sequence[tuple[int, float, float]],
) -> float:
    """Return the probability of the causal models, by their forecasts so far.

    `means` holds the number, the mean and its standard error of each answered
    experiment, the oldest first. Each forecast was made before its outcome was known,
    so the product of their densities is the evidence (Dawid 1984, J. Royal Statistical
    Society A 147:278-292).
    """
    log_odds = np.log(_PRIOR / (1 - _PRIOR))
    for age, (number, mean, error) in enumerate(reversed(means)):
        forecast = experiments[number].forecast
        if forecast is None or forecast.causal is None or forecast.model_free is None:
            continue
        logs = [
            _log_density(mean, at, np.hypot(std, error))
            for at, std in (forecast.causal, forecast.model_free)
        ]
        log_odds += _FORGET**age * (logs[0] - logs[1])
    share = 1 / (1 + np.exp(-np.clip(log_odds, -30.0, 30.0)))
    return float(np.clip(share, _LEAST, _MOST))


def _log_density(x: float, at: float, std: float) -> float:
    # Student's t with three degrees of freedom: one wild outcome decides nothing.
    return -float(np.log(std) + 2 * np.log1p(((x - at) / std) ** 2 / 3))


@dataclasses.dataclass(frozen=True, slots=True)
class PassiveModels:
    """Causal models of the rows in which nothing was set.

    Experiments choose how far they are trusted, so no outcome may have shaped them.
    """

    names: tuple[str, ...]
    rows: Float[np.ndarray, "n d"]
    ensemble: PosteriorEnsemble
    target: int
    _found: dict[tuple[tuple[int, ...], bytes], np.ndarray] = dataclasses.field(
        default_factory=dict
    )

    @classmethod
    def fit(
        cls,
        names: tuple[str, ...],
        rows: Float[np.ndarray, "n d"],
        ranges: Float[np.ndarray, "d 2"],
        target: int,
        edges: Mapping[str, Any],
        count: int,
        seed: int,
    ) -> "PassiveModels":
        """Draw the models; they depend on nothing but the arguments."""
        ensemble = sample_posterior(
            rows,
            np.zeros(rows.shape, bool),
            Domain.from_data(rows, np.ones(len(rows), bool), *ranges.T),
            count=count,
            rng=np.random.default_rng([seed, 13]),
            outputs=[target],
            row_weights=graph_row_weights(np.full(len(rows), OBSERVED)),
            **edges,
        )
        return cls(names, rows, ensemble, target)

    def is_of(self, names: tuple[str, ...], rows: Float[np.ndarray, "n d"]) -> bool:
        """Return whether the models are of these rows."""
        return names == self.names and np.array_equal(rows, self.rows, equal_nan=True)

    def predict_effects(self, points: Points) -> Float[np.ndarray, "models points"]:
        """Predict what experiments change, in each model."""
        nothing = self._predict((), np.empty((1, 0)))
        groups = zip(points.targets, points.values, strict=True)
        each = [self._predict(*group) for group in groups]
        return np.concatenate([nothing[:, :0], *each], axis=1) - nothing

    def _predict(
        self, targets: tuple[int, ...], values: Float[np.ndarray, "points targets"]
    ) -> Float[np.ndarray, "models points"]:
        # Most candidates are the same in every inference.
        key = targets, values.tobytes()
        if key not in self._found:
            # The same noise in all predictions, which cancels.
            again = np.random.default_rng(14)
            points = Points((targets,), (values,))
            means = predict_means(self.ensemble, points, [self.target], again)
            self._found[key] = means[:, :, 0]
        return self._found[key]


class ModelFree:
    """Draws of the target's mean in experiments, from a process over their outcomes."""

    def __init__(
        self,
        settings: CampaignSettings,
        names: tuple[str, ...],
        observed: Float[np.ndarray, "n d"],
        outcomes: Outcomes,
        usual: tuple[float, float] | None,
        scale: float,
        rng: np.random.Generator,
        passive: PassiveModels | None,
    ) -> None:
        self._scale, self._passive = scale, passive
        settable = [names.index(n) for n in settings.variables if n in names]
        low, high = np.array([settings.ranges[names[v]] for v in settable]).T
        natural = (low + high) / 2
        for j, v in enumerate(settable):
            seen = observed[:, v]
            seen = seen[np.isfinite(seen)]
            if len(seen):
                natural[j] = seen.mean()
        actions = {v: settings.variables[names[v]] for v in settable}
        if usual is None:
            mean = float(outcomes.mean.mean()) if len(outcomes.mean) else 0.0
            usual = mean, 3 * scale
        self._process = ActionProcess(
            outcomes,
            ActionSpace(
                tuple(settable),
                low,
                high,
                natural,
                frozenset(v for v in settable if isinstance(actions[v], Categorical)),
                {
                    v: each.codes
                    for v, each in actions.items()
                    if isinstance(each, Grid)
                },
                max(map(len, settings.allowed_sets())),
            ),
            mean=usual[0],
            mean_error=usual[1],
            scale=scale,
            rng=rng,
            effects=self._predict_effects(outcomes.points),
        )
        most, done = _MOST_DRAWN * scale, [0.0, *2 * (outcomes.mean - usual[0])]
        self._ends = usual[0] + min(-most, *done), usual[0] + max(most, *done)

    @property
    def noise(self) -> float:
        """The factor of the outcomes' errors that they call for."""
        return self._process.noise

    def draw(self, points: Points, count: int) -> Float[np.ndarray, "{count} points"]:
        """Draw the means at some points."""
        drawn = self._process.draw(points, count, self._predict_effects(points))
        return drawn.clip(*self._ends)

    def _predict_effects(
        self, points: Points
    ) -> Float[np.ndarray, "models points"] | None:
        if self._passive is None:
            return None
        most = _MOST_EFFECT * self._scale
        return np.clip(self._passive.predict_effects(points), -most, most)


def usual_mean(
    values: Float[np.ndarray, " n"], scale: float
) -> tuple[float, float] | None:
    """Return the mean of observed values and its standard error; None without any."""
    seen = values[np.isfinite(values)]
    if not len(seen):
        return None
    # Two rows may be equal by luck.
    std = float(seen.std()) if len(seen) > 2 else scale
    return float(seen.mean()), std / float(np.sqrt(len(seen)))
