"""What worlds answer, corrected by what the experiments gave."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from frugax.causal.posterior import (
    Discrepancy,
    Domain,
    Outcomes,
    Points,
    PosteriorEnsemble,
    add_discrepancy,
    enkf_update,
    fit_discrepancy,
    predict_means,
    sample_log_likelihoods,
)


class Answering:
    """The worlds of a campaign, asked about interventions.

    Attributes:
        at_experiments: what each says of the target in each experiment.
        deviation: how far the experiments are from the worlds.
    """

    def __init__(
        self,
        belief: PosteriorEnsemble,
        wanted: Sequence[int],
        outcomes: Outcomes,
        basis: Domain,
        scale: float,
        rng: np.random.Generator,
        *,
        apart: bool,
    ) -> None:
        """Hold the worlds against the experiments.

        Args:
            belief: the worlds.
            wanted: the variables that are asked for, the target first.
            outcomes: what the experiments gave.
            basis: ranges of the variables.
            scale: standard deviation of the target.
            rng: where noise and deviations come from.
            apart: whether each world may be wrong by as much as suits it, as some
                experiments say nothing of their graphs.
        """
        self._belief, self._wanted, self._rng = belief, wanted, rng
        self._outcomes, self._basis = outcomes, basis
        self._seed = int(rng.integers(1 << 30))
        self.at_experiments = self.said(outcomes.points)[:, :, 0]
        told = self.at_experiments, outcomes, basis, scale
        self.deviation: Discrepancy = fit_discrepancy(*told)
        self._each: Sequence[Discrepancy] = (
            sample_log_likelihoods(*told)[1]
            if apart
            else [self.deviation] * len(belief.samples)
        )
        self._at_corrected = self._corrected(self.at_experiments, outcomes.points)

    def said(self, points: Points) -> Float[np.ndarray, "worlds points wanted"]:
        """What each world says of all variables that are asked for.

        Args:
            points: the interventions.
        """
        # The same noise whatever is asked, so that predict_means compare.
        again = np.random.default_rng(self._seed)
        return predict_means(self._belief, points, self._wanted, again)

    def agreed(
        self, said: Float[np.ndarray, "worlds points"], points: Points
    ) -> Float[np.ndarray, "worlds points"]:
        """What each says of the target once it agrees with the experiments.

        Args:
            said: what it said before.
            points: of these interventions.
        """
        fixed = self._corrected(said, points)
        # The same errors of the outcomes whatever is asked.
        again = np.random.default_rng([self._seed, 1])
        return enkf_update(
            fixed, points, self._at_corrected, self._outcomes, self._basis, again
        )

    def _corrected(
        self, said: Float[np.ndarray, "worlds points"], points: Points
    ) -> Float[np.ndarray, "worlds points"]:
        return add_discrepancy(
            said,
            points,
            self.at_experiments,
            self._outcomes,
            self._basis,
            self._each,
            self._rng,
        )
