"""Who causes whom in a table, answered in milliseconds by a network trained before.

Start at `default_surrogate`. To train another: `train_surrogate`; the older guide's
names: `create_jax_surrogate_train_step` and those around it. Guide:
docs/causal_surrogate.md.
"""

from typing import TYPE_CHECKING

from frugax.doors import open_name

from ._posterior import ParentSetPosterior
from ._shipped import default_surrogate, load_surrogate, save_surrogate
from ._surrogate import Surrogate

if TYPE_CHECKING:
    from ._training import SurrogateTraining, train_surrogate
    from .guide import (
        ParentSetModel,
        Stage,
        SurrogateStep,
        SurrogateTrainingConfig,
        TrainingBatch,
        TrainingBatchJAX,
        TrainingExample,
        calibrated_loss,
        convert_to_jax_batch,
        create_adaptive_train_step,
        create_jax_surrogate_train_step,
        create_parent_set_model,
        create_surrogate_train_step,
        create_training_batch,
        kl_divergence_loss,
        kl_divergence_loss_jax,
        multi_target_loss,
        progressive_learning,
        uncertainty_weighted_loss,
        uncertainty_weighted_loss_jax,
    )

__all__ = [
    "ParentSetModel",
    "ParentSetPosterior",
    "Stage",
    "Surrogate",
    "SurrogateStep",
    "SurrogateTraining",
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
    "default_surrogate",
    "kl_divergence_loss",
    "kl_divergence_loss_jax",
    "load_surrogate",
    "multi_target_loss",
    "progressive_learning",
    "save_surrogate",
    "train_surrogate",
    "uncertainty_weighted_loss",
    "uncertainty_weighted_loss_jax",
]

# Training needs JAX and optax; asking does not.
_HERE = {"ParentSetPosterior", "Surrogate", "default_surrogate", "load_surrogate"}
_HERE |= {"save_surrogate"}
HOMES = {
    name: "_training" if name in {"SurrogateTraining", "train_surrogate"} else "guide"
    for name in __all__
    if name not in _HERE
}


def __getattr__(name: str) -> object:
    return open_name(__name__, HOMES, name)
