"""The input of acquisition policies: effects of candidates in each posterior sample."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from frugax.causal.posterior import Points

# Share of posterior samples in which a recommendation must keep the constraints.
SURE = 0.9
# A tried point is not repeated if fewer samples than this share allow it, and none is
# asked for or recommended that is less likely to give data: after two failures nearby.
_MIN_ALLOWED_SHARE = 0.5
# Recommendations are ranked by their mean plus this many standard deviations: the
# point with the best mean is otherwise often the luckiest one (the winner's curse).
PRUDENCE = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Outlook:
    """The candidate experiments, and their effects in each posterior sample (world).

    Attributes:
        points: the candidate interventions.
        loss: mean of the target, negated if it is maximized, so that less is better.
        allowed: whether all constraints hold in a world.
        price: of one experiment, in budget units.
        affordable: whether the budget still pays for an experiment.
        reached: the least loss of pending experiments; infinite without any.
        breach: mean violation of the constraints, in standard deviations of the
            constrained variables.
        noise: standard error of the outcome of one experiment, in the target's unit.
        done: the experiments that were answered.
        left: number of experiments of the usual price that the budget still pays for.
        repeats: number of experiments near a point, also pending ones; None if unknown.
        success: probability that an experiment gives data; None if all do.
        asked: number of experiments that were asked for.
    """

    points: Points
    loss: Float[np.ndarray, "worlds points"]
    allowed: Bool[np.ndarray, "worlds points"]
    price: Float[np.ndarray, " points"]
    affordable: Bool[np.ndarray, " points"]
    reached: Float[np.ndarray, " worlds"]
    breach: Float[np.ndarray, " points"]
    noise: float
    done: Points
    left: float = np.inf
    repeats: Float[np.ndarray, " points"] | None = None
    success: Float[np.ndarray, " points"] | None = None
    asked: int = 0

    @property
    def mean(self) -> Float[np.ndarray, " points"]:
        """Mean loss over the worlds; infinite where a constraint likely breaks.

        Also where an experiment likely fails.
        """
        kept = permitted(self.allowed, self.breach) & ~self.fails
        return np.where(kept, self.loss.mean(0), np.inf)

    @property
    def fails(self) -> Bool[np.ndarray, " points"]:
        """Whether an experiment likely gives no data."""
        if self.success is None:
            return np.zeros(len(self.points), bool)
        return self.success < _MIN_ALLOWED_SHARE

    @property
    def refuted(self) -> Bool[np.ndarray, " points"]:
        """Whether a point was tried and most worlds do not allow it, or it fails."""
        tried = np.zeros(len(self.points), bool)
        group = self.points.group
        for where, values in zip(self.done.targets, self.done.values, strict=True):
            if where in self.points.targets:
                g = self.points.targets.index(where)
                same = self.points.values[g][:, None] == values
                tried[group == g] = same.all(2).any(1)
        return tried & (self.allowed.mean(0) < _MIN_ALLOWED_SHARE) | self.fails

    @property
    def best(self) -> int:
        """The point to recommend now: the least upper confidence bound of the loss."""
        return int(np.argmin(self.mean + PRUDENCE * self.loss.std(0)))


def permitted(
    allowed: Bool[np.ndarray, "worlds points"], breach: Float[np.ndarray, " points"]
) -> Bool[np.ndarray, " points"]:
    """Select the points that may be recommended: they likely keep the constraints.

    If no point keeps them in a share of `SURE` of the worlds, the points with the
    largest share are selected; if that is 0, those with the least violation.
    """
    share = allowed.mean(0)
    largest = float(share.max(initial=0.0))
    if not largest:
        return breach <= breach.min()
    return share >= min(SURE, largest)
