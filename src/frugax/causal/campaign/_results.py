"""What a campaign gives back: a question, a recommendation, an advice."""

import dataclasses

from frugax.causal.policy import Value
from frugax.causal.scm import Intervention


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An experiment to do next. Its cost is set aside until it is answered.

    Attributes:
        id: its number in the campaign, from 0.
        intervention: what to set, and to what.
        cost: its price, in budget units.
        expected: the target's mean that is expected, in its unit.
        low: the mean is below this in one world of twenty.
        high: the mean is above this in one world of twenty.
        value: what the answer is worth, in the target's unit.
    """

    id: int
    intervention: Intervention
    cost: float
    expected: float
    low: float
    high: float
    value: Value

    def __str__(self) -> str:
        return (
            f"#{self.id} {self.intervention} costs {self.cost:g}; expected "
            f"{self.expected:.4g} ({self.low:.4g} to {self.high:.4g}); worth "
            f"{self.value.total:.3g} (learn {self.value.learn:.2g}, exploit "
            f"{self.value.exploit:.2g})"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The best intervention that is known.

    Attributes:
        intervention: what to set, and to what.
        expected: the target's mean under it, in its unit.
        low: lower end of the 90 % interval of that mean.
        high: upper end of it.
        right: probability that nothing that is likely to keep the constraints is
            better by more than the tolerance; and where nothing is likely to, that this
            keeps them.
        keeps: probability that it keeps the constraints.
        warning: that nothing is likely to keep them, or that they were not measured;
            empty where all is well.
        regret: by how much the best that is likely to keep them is expected to be
            better, in the target's unit.
    """

    intervention: Intervention
    expected: float
    low: float
    high: float
    right: float
    keeps: float
    warning: str
    regret: float

    @property
    def value(self) -> dict[str, float]:
        """What to set, and to what."""
        return self.intervention.values

    def __str__(self) -> str:
        return (
            f"{self.intervention}: {self.expected:.4g} ({self.low:.4g} to "
            f"{self.high:.4g}); as good as the best with probability {self.right:.0%}"
            f"{'; ' if self.warning else ''}{self.warning}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Whether to go on.

    Attributes:
        stop: whether to stop.
        why: in one sentence.
        value: of the most valuable experiment that can be paid; None if there is none.
        right: of the recommendation, see there.
    """

    stop: bool
    why: str
    value: Value | None
    right: float

    def __str__(self) -> str:
        return f"{'stop' if self.stop else 'go on'}: {self.why}"
