from . import distributed as distributed
from ._frozen import Frozen as Frozen
from .checkpoints import Checkpoints as Checkpoints
from .compiles import (
    CompileLedger as CompileLedger,
    compile_cache_folder as compile_cache_folder,
    use_compile_cache as use_compile_cache,
)
from .loop import (
    EarlyStop as EarlyStop,
    Evaluation as Evaluation,
    FitResult as FitResult,
    ResumableIterator as ResumableIterator,
    TimeLedger as TimeLedger,
    TrainPlan as TrainPlan,
    apply as apply,
    fit as fit,
    index_batches as index_batches,
    plan as plan,
    steps_within as steps_within,
)
from .step import (
    AccumulationWarning as AccumulationWarning,
    LossScale as LossScale,
    Metrics as Metrics,
    StaticPart as StaticPart,
    StepInfo as StepInfo,
    TrainState as TrainState,
    TrainStep as TrainStep,
    Weighted as Weighted,
    init_state as init_state,
    is_trainable as is_trainable,
    make_train_step as make_train_step,
)
