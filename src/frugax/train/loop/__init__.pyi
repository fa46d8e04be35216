from ._batches import (
    ResumableIterator as ResumableIterator,
    index_batches as index_batches,
    prefetch_batches as prefetch_batches,
)
from ._evaluation import EarlyStop as EarlyStop, Evaluation as Evaluation
from ._fit import FitResult as FitResult, apply as apply, fit as fit
from ._plan import TrainPlan as TrainPlan, plan as plan, steps_within as steps_within
from ._timing import LapClock as LapClock, Pace as Pace, TimeLedger as TimeLedger
