from ._clone import (
    clone_expert as clone_expert,
)
from ._experts import (
    Demonstrations as Demonstrations,
    Task as Task,
    expert_demonstrations as expert_demonstrations,
    random_tasks as random_tasks,
)
from ._game import (
    Played as Played,
    play as play,
)
from ._grpo import (
    GRPOBatch as GRPOBatch,
    GRPOConfig as GRPOConfig,
    GRPOTrainer as GRPOTrainer,
    GRPOUpdate as GRPOUpdate,
    collect_grpo_batch as collect_grpo_batch,
    create_grpo_trainer as create_grpo_trainer,
)
from ._policy import (
    AcquisitionPolicy as AcquisitionPolicy,
    Choice as Choice,
    PolicyConfig as PolicyConfig,
    compute_action_log_probability as compute_action_log_probability,
    compute_policy_entropy as compute_policy_entropy,
    create_acquisition_policy as create_acquisition_policy,
    sample_intervention_from_policy as sample_intervention_from_policy,
)
