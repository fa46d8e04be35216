"""A campaign's model-free forecast, and the causal models' weight, by accuracy."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from frugax.causal.posterior import (
    ActionSpace,
    Outcomes,
    Points,
    draw_action_process,
)

from ._experiments import ExperimentRecord
from ._settings import CampaignSettings
from .actions import Categorical

# Prior probability of the causal models, with and without observations to learn from.
_PRIOR, _PRIOR_BLIND = 0.75, 0.5
# Neither kind is ever certain: the causal models know more than any outcome can show,
# and only the others expect an effect where no data are.
_LEAST, _MOST = 0.3, 0.8
# An earlier experiment counts this much less: wrong causal models have learned from
# it since (forgetting factors: Raftery, Kárný & Ettler 2010, Technometrics 52:52-66).
_FORGET = 0.9


def causal_share(
    experiments: Sequence[ExperimentRecord],
    means: Sequence[tuple[int, float, float]],
    *,
    blind: bool,
) -> float:
    """Return the probability of the causal models, by their forecasts so far.

    `means` holds the number, the mean and its standard error of each answered
    experiment. Each forecast was made before its outcome was known, so the product of
    their densities is the evidence (Dawid 1984, J. Royal Statistical Society A
    147:278-292).
    """
    prior = _PRIOR_BLIND if blind else _PRIOR
    log_odds = np.log(prior / (1 - prior))
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


class ModelFree:
    """Draws of the target's mean in experiments, from their outcomes alone."""

    def __init__(
        self,
        settings: CampaignSettings,
        names: tuple[str, ...],
        observed: Float[np.ndarray, "n d"],
        outcomes: Outcomes,
        usual: tuple[float, float] | None,
        pending: Points,
        scale: float,
        rng: np.random.Generator,
    ) -> None:
        self._outcomes, self._pending, self._scale = outcomes, pending, scale
        self._seed = int(rng.integers(1 << 30))
        settable = [names.index(n) for n in settings.variables if n in names]
        low, high = np.array([settings.ranges[names[v]] for v in settable]).T
        natural = (low + high) / 2
        for j, v in enumerate(settable):
            seen = observed[:, v]
            seen = seen[np.isfinite(seen)]
            if len(seen):
                natural[j] = seen.mean()
        unordered = frozenset(
            v for v in settable if isinstance(settings.variables[names[v]], Categorical)
        )
        self._space = ActionSpace(tuple(settable), low, high, natural, unordered)
        if usual is None:
            mean = float(outcomes.mean.mean()) if len(outcomes.mean) else 0.0
            usual = mean, 3 * scale
        self._usual = usual

    def draw(
        self, points: Points, count: int
    ) -> tuple[Float[np.ndarray, "{count} points"], Float[np.ndarray, " points"]]:
        """Draw the means at some points, and say how unexplored each of them is."""
        mean, error = self._usual
        return draw_action_process(
            points,
            self._outcomes,
            self._space,
            mean=mean,
            mean_error=error,
            scale=self._scale,
            pending=self._pending,
            count=count,
            # Common random numbers: predictions made at different times stay
            # comparable.
            rng=np.random.default_rng(self._seed),
        )


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
