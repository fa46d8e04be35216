from ._grpo import (
    Experience as Experience,
    GRPOConfig as GRPOConfig,
    GRPOTrainer as GRPOTrainer,
    collect_experience as collect_experience,
)
from ._losses import (
    kl_divergence_loss as kl_divergence_loss,
    kl_divergence_loss_jax as kl_divergence_loss_jax,
    uncertainty_weighted_loss_jax as uncertainty_weighted_loss_jax,
)
from ._measuring import (
    CompilationCost as CompilationCost,
    MemoryUse as MemoryUse,
    SustainedThroughput as SustainedThroughput,
    benchmark_sustained_performance as benchmark_sustained_performance,
    measure_compilation_speedup as measure_compilation_speedup,
    monitor_memory_usage as monitor_memory_usage,
)
from ._parent_set_model import (
    ParentSetModel as ParentSetModel,
    SurrogateTrainingConfig as SurrogateTrainingConfig,
    create_parent_set_model as create_parent_set_model,
)
from ._policy import (
    AcquisitionPolicy as AcquisitionPolicy,
    create_acquisition_policy as create_acquisition_policy,
)
from ._static_args import (
    prepare_static_args as prepare_static_args,
    restore_static_args as restore_static_args,
)
from ._surrogate_steps import (
    SurrogateStep as SurrogateStep,
    create_adaptive_train_step as create_adaptive_train_step,
    create_jax_surrogate_train_step as create_jax_surrogate_train_step,
    create_surrogate_train_step as create_surrogate_train_step,
)
from ._training_batch import (
    TrainingBatch as TrainingBatch,
    TrainingBatchJAX as TrainingBatchJAX,
    convert_to_jax_batch as convert_to_jax_batch,
    create_training_batch as create_training_batch,
)
