# The surrogate's training step.
# The learned acquisition policy.
from ._board import (
    MAX_SETS as MAX_SETS,
    PLACES as PLACES,
    Board as Board,
    board_features as board_features,
    recommend_place as recommend_place,
)
from ._demonstrations import (
    Demonstrations as Demonstrations,
    Task as Task,
    clone_expert as clone_expert,
    expert_demonstrations as expert_demonstrations,
    random_tasks as random_tasks,
)
from ._grpo import (
    GRPOBatch as GRPOBatch,
    GRPOConfig as GRPOConfig,
    GRPOTrainer as GRPOTrainer,
    GRPOUpdate as GRPOUpdate,
    Played as Played,
    apply_answer as apply_answer,
    collect_grpo_batch as collect_grpo_batch,
    create_grpo_trainer as create_grpo_trainer,
    play as play,
)
from ._losses import (
    calibrated_loss as calibrated_loss,
    kl_divergence_loss as kl_divergence_loss,
    kl_divergence_loss_jax as kl_divergence_loss_jax,
    multi_target_loss as multi_target_loss,
    uncertainty_weighted_loss as uncertainty_weighted_loss,
    uncertainty_weighted_loss_jax as uncertainty_weighted_loss_jax,
)
from ._parent_set_model import (
    ParentSetModel as ParentSetModel,
    SurrogateTrainingConfig as SurrogateTrainingConfig,
    create_parent_set_model as create_parent_set_model,
)
from ._policy import (
    AcquisitionPolicy as AcquisitionPolicy,
    Choice as Choice,
    PolicyConfig as PolicyConfig,
    compute_action_log_probability as compute_action_log_probability,
    compute_policy_entropy as compute_policy_entropy,
    create_acquisition_policy as create_acquisition_policy,
    initial_policy_weights as initial_policy_weights,
    log_policy as log_policy,
    sample_intervention_from_policy as sample_intervention_from_policy,
)

# Helpers for training.
from ._static_args import (
    prepare_static_args as prepare_static_args,
    restore_static_args as restore_static_args,
)
from ._surrogate_steps import (
    Stage as Stage,
    SurrogateStep as SurrogateStep,
    create_adaptive_train_step as create_adaptive_train_step,
    create_jax_surrogate_train_step as create_jax_surrogate_train_step,
    create_surrogate_train_step as create_surrogate_train_step,
    progressive_learning as progressive_learning,
)
from ._training_batch import (
    TrainingBatch as TrainingBatch,
    TrainingBatchJAX as TrainingBatchJAX,
    TrainingExample as TrainingExample,
    convert_to_jax_batch as convert_to_jax_batch,
    create_training_batch as create_training_batch,
)
from ._training_benchmarks import (
    CompilationCost as CompilationCost,
    MemoryUse as MemoryUse,
    SustainedThroughput as SustainedThroughput,
    benchmark_sustained_performance as benchmark_sustained_performance,
    measure_compilation_speedup as measure_compilation_speedup,
    monitor_memory_usage as monitor_memory_usage,
)
