from ._posterior import (
    ParentSetPosterior as ParentSetPosterior,
)
from ._shipped import (
    default_surrogate as default_surrogate,
    load_surrogate as load_surrogate,
    save_surrogate as save_surrogate,
)
from ._surrogate import (
    Surrogate as Surrogate,
    likely_graph as likely_graph,
)
from ._training import (
    SurrogateTraining as SurrogateTraining,
    train_surrogate as train_surrogate,
)
from .guide import (
    ParentSetModel as ParentSetModel,
    Stage as Stage,
    SurrogateStep as SurrogateStep,
    SurrogateTrainingConfig as SurrogateTrainingConfig,
    TrainingBatch as TrainingBatch,
    TrainingBatchJAX as TrainingBatchJAX,
    TrainingExample as TrainingExample,
    calibrated_loss as calibrated_loss,
    convert_to_jax_batch as convert_to_jax_batch,
    create_adaptive_train_step as create_adaptive_train_step,
    create_jax_surrogate_train_step as create_jax_surrogate_train_step,
    create_parent_set_model as create_parent_set_model,
    create_surrogate_train_step as create_surrogate_train_step,
    create_training_batch as create_training_batch,
    kl_divergence_loss as kl_divergence_loss,
    kl_divergence_loss_jax as kl_divergence_loss_jax,
    multi_target_loss as multi_target_loss,
    progressive_learning as progressive_learning,
    uncertainty_weighted_loss as uncertainty_weighted_loss,
    uncertainty_weighted_loss_jax as uncertainty_weighted_loss_jax,
)
