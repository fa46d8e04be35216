from ._build import Metrics as Metrics
from ._check_parts import AccumulationWarning as AccumulationWarning
from ._gradients import (
    LossScale as LossScale,
    Precision as Precision,
)
from ._make_step import make_train_step as make_train_step
from ._micro_batches import Weighted as Weighted
from ._model_parts import StaticPart as StaticPart, is_trainable as is_trainable
from ._state import (
    TrainState as TrainState,
    check_call as check_call,
    check_is_state as check_is_state,
    check_not_donated as check_not_donated,
    find_nonfinite_weight as find_nonfinite_weight,
    init_state as init_state,
)
from ._step import StepInfo as StepInfo, TrainStep as TrainStep
