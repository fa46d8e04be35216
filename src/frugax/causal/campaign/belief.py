"""Beliefs about experiments: one process, with the causal models as its prior."""

import numpy as np
from jaxtyping import Float

from frugax.causal.posterior import (
    ActionProcess,
    ActionSpace,
    Outcomes,
    Points,
    PosteriorEnsemble,
    predict_means,
)

from ._settings import CampaignSettings
from .actions import Categorical, Grid

# Draws of each mean.
NUM_DRAWS = 96
# Far outside of the data functions are guesses; in standard deviations of the target,
# or twice as far as any outcome. Of 24 laboratories the models of four go further, to
# 14 at most, in the first two experiments.
_MOST_EFFECT = 10.0
# A draw goes no further than this from the usual mean, or twice as far as any outcome,
# or as far as the causal models expect. Few draws have much larger effects, at whatever
# untried lever; their gain would choose each experiment. Chosen on five laboratories of
# their own (docs/maintainers.md).
_MOST_DRAWN = 4.0


class Belief:
    """Draws of the means in any experiment, given all rows.

    Causal models of all rows say what an experiment changes. A process over the
    outcomes has their effects on the target as its prior, and outcomes decide how far
    they are trusted. Other outputs are predicted by the causal models alone: a process
    that starts from the usual mean would take any experiment for safe.
    """

    def __init__(
        self,
        settings: CampaignSettings,
        levers: tuple[str, ...],
        observed: Float[np.ndarray, "n d"],
        outcomes: Outcomes,
        usual: tuple[float, float] | None,
        scale: float,
        ensemble: PosteriorEnsemble,
        outputs: list[int],
        rng: np.random.Generator,
        *,
        has_models: bool,
    ) -> None:
        """Condition the process on the outcomes.

        Without `has_models` no row has every variable, and the causal models are draws
        from their prior.
        """
        self._ensemble, self._outputs = ensemble, outputs
        self._seed = int(rng.integers(1 << 30))
        settable = [levers.index(n) for n in settings.variables if n in levers]
        low, high = np.array([settings.ranges[levers[v]] for v in settable]).T
        natural = (low + high) / 2
        for j, v in enumerate(settable):
            seen = observed[:, v]
            seen = seen[np.isfinite(seen)]
            if len(seen):
                natural[j] = seen.mean()
        actions = {v: settings.variables[levers[v]] for v in settable}
        if usual is None:
            mean = float(outcomes.mean.mean()) if len(outcomes.mean) else 0.0
            usual = mean, 3 * scale
        self._usual = usual[0]
        beyond = 2 * np.abs(outcomes.mean - usual[0]).max(initial=0.0)
        self._most_drawn = max(_MOST_DRAWN * scale, beyond)
        # The causal models are draws from their prior: their effects say nothing.
        self._most_effect = max(_MOST_EFFECT * scale, beyond) if has_models else 0.0
        nothing = Points(((),), (np.empty((1, 0)),))
        self._nothing = self._predict_causes(nothing)[:, :, 0]
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
            effects=self._find_effects(self._predict_causes(outcomes.points)),
        )

    @property
    def noise(self) -> float:
        """The factor of the outcomes' errors that they call for."""
        return self._process.noise

    def predict(self, points: Points) -> Float[np.ndarray, "draws points outputs"]:
        """Draw the means at some points: the same functions in each call."""
        causal = self._predict_causes(points)
        found = causal[np.arange(NUM_DRAWS) % len(causal)]
        effects = self._find_effects(causal)
        expected = self._usual + effects.mean(0)
        found[:, :, 0] = self._process.draw(points, NUM_DRAWS, effects).clip(
            np.minimum(self._usual - self._most_drawn, expected),
            np.maximum(self._usual + self._most_drawn, expected),
        )
        return found

    def _predict_causes(
        self, points: Points
    ) -> Float[np.ndarray, "models points outputs"]:
        # Common random numbers: the same noise in all predictions, which cancels.
        again = np.random.default_rng(self._seed)
        return predict_means(self._ensemble, points, self._outputs, again)

    def _find_effects(
        self, causal: Float[np.ndarray, "models points outputs"]
    ) -> Float[np.ndarray, "models points"]:
        most = self._most_effect
        return np.clip(causal[:, :, 0] - self._nothing, -most, most)


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
