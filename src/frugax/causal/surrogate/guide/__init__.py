"""The older guide's names and call orders, on the surrogate of this room.

Start at `create_training_batch`, `create_parent_set_model` and
`create_jax_surrogate_train_step`. Guide: docs/causal_surrogate.md.
"""

from ._batch import (
    TrainingBatch,
    TrainingBatchJAX,
    TrainingExample,
    convert_to_jax_batch,
    create_training_batch,
)
from ._config import SurrogateTrainingConfig
from ._losses import (
    calibrated_loss,
    kl_divergence_loss,
    kl_divergence_loss_jax,
    multi_target_loss,
    uncertainty_weighted_loss,
    uncertainty_weighted_loss_jax,
)
from ._model import ParentSetModel, create_parent_set_model
from ._progressive import Stage, progressive_learning
from ._steps import (
    SurrogateStep,
    create_adaptive_train_step,
    create_jax_surrogate_train_step,
    create_surrogate_train_step,
)

__all__ = [
    "ParentSetModel",
    "Stage",
    "SurrogateStep",
    "SurrogateTrainingConfig",
    "TrainingBatch",
    "TrainingBatchJAX",
    "TrainingExample",
    "calibrated_loss",
    "convert_to_jax_batch",
    "create_adaptive_train_step",
    "create_jax_surrogate_train_step",
    "create_parent_set_model",
    "create_surrogate_train_step",
    "create_training_batch",
    "kl_divergence_loss",
    "kl_divergence_loss_jax",
    "multi_target_loss",
    "progressive_learning",
    "uncertainty_weighted_loss",
    "uncertainty_weighted_loss_jax",
]
