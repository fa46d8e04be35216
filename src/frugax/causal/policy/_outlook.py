"""What a policy sees before it chooses: every experiment's effect in every world."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.posterior import Points

# Share of worlds in which a recommendation must keep the constraints.
SURE = 0.9
# What fewer worlds than these allow is not tried a second time.
_EVEN = 0.5
# A recommendation counts as so many deviations worse than its mean.
PRUDENCE = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Outlook:
    """The experiments that could be done, and what each world says of them.

    Attributes:
        points: the interventions.
        loss: the target's mean, so signed that less is better; `[worlds, points]`.
        allowed: where a world keeps all constraints; `[worlds, points]`.
        price: of one experiment, in budget units.
        affordable: which experiments the budget still allows.
        causes: which worlds agree on the causes of the target; `[worlds]`.
        reached: the least loss of the experiments under way; infinite without any.
        shift: what experiments nearby add to the mean that worlds agree on.
        doubt: standard deviation of what is left of that.
        misfit: standard deviation of what forecasts missed beside the worlds' spread.
        breach: by how much constraints are broken on average, in standard deviations
            of what they are about.
        noise: standard error of one experiment's outcome, in the target's unit.
        done: the experiments that were answered.
        left: experiments of the usual price that the budget still pays for.
    """

    points: Points
    loss: Float[np.ndarray, "worlds points"]
    allowed: Bool[np.ndarray, "worlds points"]
    price: Float[np.ndarray, " points"]
    affordable: Bool[np.ndarray, " points"]
    causes: Int[np.ndarray, " worlds"]
    reached: Float[np.ndarray, " worlds"]
    shift: Float[np.ndarray, " points"]
    doubt: Float[np.ndarray, " points"]
    misfit: Float[np.ndarray, " points"]
    breach: Float[np.ndarray, " points"]
    noise: float
    done: Points
    left: float = np.inf

    @property
    def mean(self) -> Float[np.ndarray, " points"]:
        """Mean loss over the worlds, infinite where constraints are likely broken."""
        kept = permitted(self.allowed, self.breach)
        return np.where(kept, self.loss.mean(0), np.inf)

    @property
    def refuted(self) -> Bool[np.ndarray, " points"]:
        """What was tried already and most worlds do not allow."""
        tried = np.zeros(len(self.points), bool)
        group = self.points.group
        for where, values in zip(self.done.targets, self.done.values, strict=True):
            if where in self.points.targets:
                g = self.points.targets.index(where)
                same = self.points.values[g][:, None] == values
                tried[group == g] = same.all(2).any(1)
        return tried & (self.allowed.mean(0) < _EVEN)

    @property
    def best(self) -> int:
        """The point to recommend today: good on average, and not by luck."""
        unsure = PRUDENCE * self.loss.std(0) + self.doubt
        return int(np.argmin(self.mean + self.shift + unsure))


def permitted(
    allowed: Bool[np.ndarray, "worlds points"], breach: Float[np.ndarray, " points"]
) -> Bool[np.ndarray, " points"]:
    """What may be recommended: what keeps the constraints in nearly all worlds.

    Where nothing does that is what keeps them in most, and what breaks them least where
    no world keeps them at all.

    Args:
        allowed: where a world keeps all constraints.
        breach: by how much they are broken on average.
    """
    sure = allowed.mean(0)
    most = float(sure.max(initial=0.0))
    return sure >= min(SURE, most) if most else breach <= breach.min()
