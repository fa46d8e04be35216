"""One compiled training step: loss, gradient and optimiser within a memory budget."""

from ._build import Metrics
from ._fallback import FallbackWarning, Mode
from ._gradients import LossScale, Precision
from ._make_step import make_train_step
from ._model_parts import StaticPart, is_trainable
from ._state import (
    TrainState,
    check_call,
    check_is_state,
    check_not_donated,
    init_state,
)
from ._step import StepInfo, TrainStep

__all__ = [
    "FallbackWarning",
    "LossScale",
    "Metrics",
    "Mode",
    "Precision",
    "StaticPart",
    "StepInfo",
    "TrainState",
    "TrainStep",
    "check_call",
    "check_is_state",
    "check_not_donated",
    "init_state",
    "is_trainable",
    "make_train_step",
]
