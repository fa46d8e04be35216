"""Stop when evaluations no longer get better."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from .options import check_choice, check_instance, check_integer, check_number


@runtime_checkable
class _Evaluated(Protocol):
    @property
    def values(self) -> Mapping[str, float]: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """When to stop: after `patience` evaluations without a better one.

    Attributes:
        metric: which of the numbers that `evaluate` gives.
        patience: evaluations to wait; >= 1.
        better: whether lower or higher numbers are.
        least: by how much one must be better to count; >= 0.

    Example:
        >>> EarlyStop(metric="accuracy", better="higher", patience=5).patience
        5
    """

    metric: str = "loss"
    patience: int = 3
    better: Literal["lower", "higher"] = "lower"
    least: float = 0.0

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            TypeError: one is of the wrong kind.
            ValueError: one is out of its range.
        """
        check_instance("metric", self.metric, str, example='"loss"')
        check_integer("patience", self.patience)
        check_choice("better", self.better, ("lower", "higher"))
        check_number("least", self.least, minimum=0)

    def best(self, history: Sequence[_Evaluated]) -> int:
        """The place in the history of the best evaluation so far.

        Raises:
            ValueError: `evaluate` does not give this metric, or gives NaN.
        """
        at, best = 0, float("nan")
        for i, evaluation in enumerate(history):
            if self.metric not in evaluation.values:
                raise ValueError(
                    f"early_stop looks at {self.metric!r}, but evaluate gives "
                    f"{', '.join(evaluation.values) or 'nothing'}."
                )
            value = evaluation.values[self.metric]
            if value != value:
                raise ValueError(
                    f"early_stop looks at {self.metric!r}, which is NaN in evaluation "
                    f"{i}."
                )
            gain = best - value if self.better == "lower" else value - best
            if i == 0 or gain > self.least:
                at, best = i, value
        return at

    def is_due(self, history: Sequence[_Evaluated]) -> bool:
        """Whether it is time to stop."""
        return len(history) - 1 - self.best(history) >= self.patience
