"""Evaluations of a state during training, and early stopping by them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from frugax.options import check_choice, check_instance, check_integer, check_number


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `evaluate` for one state.

    Attributes:
        step: number of steps that the state had taken.
        seconds: time of the evaluation, counted from the start of the `fit` that made
            it.
        values: the numbers that `evaluate` returned.
    """

    step: int
    seconds: float
    values: Mapping[str, float]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Evaluation":
        """Read an evaluation that a checkpoint keeps as JSON, where NaN is null."""
        values = {
            name: math.nan if value is None else value
            for name, value in plain["values"].items()
        }
        return cls(plain["step"], plain["seconds"], values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Stop training after `patience` evaluations without an improvement.

    Attributes:
        metric: the number of `evaluate` to judge by.
        patience: evaluations to wait; >= 1.
        better: whether lower or higher numbers are better.
        min_delta: smallest change that counts as an improvement; >= 0.

    Example:
        >>> EarlyStop(metric="accuracy", better="higher", patience=5).patience
        5
    """

    metric: str = "loss"
    patience: int = 3
    better: Literal["lower", "higher"] = "lower"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        check_instance("metric", self.metric, str, example='"loss"')
        check_integer("patience", self.patience)
        check_choice("better", self.better, ("lower", "higher"))
        check_number("min_delta", self.min_delta, minimum=0)

    def best(self, history: Sequence[Evaluation]) -> int:
        """Return the index of the best evaluation so far.

        Raises:
            ValueError: `evaluate` does not return this metric, or returns NaN for it.
        """
        best_index, best = 0, float("nan")
        for i, evaluation in enumerate(history):
            value = self._read(evaluation, i)
            gain = value - best
            if self.better == "lower":
                gain = -gain
            # The first one is the best so far, whatever `best` is.
            if i == 0 or gain > self.min_delta:
                best_index, best = i, value
        return best_index

    def is_due(self, history: Sequence[Evaluation]) -> bool:
        """Return whether it is time to stop."""
        return len(history) - 1 - self.best(history) >= self.patience

    def _read(self, evaluation: Evaluation, index: int) -> float:
        if self.metric not in evaluation.values:
            raise ValueError(
                f"early_stop looks at {self.metric!r}, but evaluate gives "
                f"{', '.join(evaluation.values) or 'nothing'}."
            )
        value = evaluation.values[self.metric]
        if np.isnan(value):
            raise ValueError(
                f"early_stop looks at {self.metric!r}, which is NaN in evaluation "
                f"{index}."
            )
        return value


def read_numbers(values: object) -> dict[str, float]:
    """Convert the result of `evaluate` to numbers on the host."""
    if not isinstance(values, Mapping):
        raise TypeError(
            'evaluate must return named numbers, such as {"loss": 0.5}, got '
            f"{values!r:.99}."
        )
    for name, value in values.items():
        if isinstance(value, str) or np.ndim(value):
            raise TypeError(
                f"evaluate must return one number for each name, got {value!r:.99} for "
                f"{name!r}."
            )
    return {str(name): float(value) for name, value in values.items()}
