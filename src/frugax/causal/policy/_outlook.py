"""What a policy sees before it chooses: every experiment's effect in every world."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.worlds import Points

# Share of worlds in which a recommendation must keep the constraints.
SURE = 0.9
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
    noise: float
    done: Points
    left: float = np.inf

    @property
    def mean(self) -> Float[np.ndarray, " points"]:
        """Mean loss over the worlds, infinite where constraints are likely broken."""
        sure = self.allowed.mean(0)
        kept = sure >= min(SURE, float(sure.max()))
        return np.where(kept, self.loss.mean(0), np.inf)

    @property
    def best(self) -> int:
        """The point to recommend today: good on average, and not by luck."""
        unsure = PRUDENCE * self.loss.std(0) + self.doubt
        return int(np.argmin(self.mean + self.shift + unsure))
