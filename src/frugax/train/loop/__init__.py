"""The training loop: steps within seconds, evaluations, checkpoints and signals."""

from ._batches import index_batches, prefetch_batches
from ._evaluation import EarlyStop, Evaluation
from ._fit import FitResult, apply, fit
from ._plan import TrainPlan, plan, steps_within
from ._timing import LapClock, Pace, TimeLedger

__all__ = [
    "EarlyStop",
    "Evaluation",
    "FitResult",
    "LapClock",
    "Pace",
    "TimeLedger",
    "TrainPlan",
    "apply",
    "fit",
    "index_batches",
    "plan",
    "prefetch_batches",
    "steps_within",
]
