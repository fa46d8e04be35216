"""A policy that learns to choose experiments, from an expert and from its own games.

Start at `create_acquisition_policy`; `expert_demonstrations` and `clone_expert` teach
it, `create_grpo_trainer` lets it learn. Guide: docs/causal_policy.md.
"""

from typing import TYPE_CHECKING

from frugax.doors import open_name

if TYPE_CHECKING:
    from ._clone import clone_expert
    from ._experts import Demonstrations, Task, expert_demonstrations, random_tasks
    from ._game import Played, play
    from ._grpo import (
        GRPOBatch,
        GRPOConfig,
        GRPOTrainer,
        GRPOUpdate,
        collect_grpo_batch,
        create_grpo_trainer,
    )
    from ._policy import (
        AcquisitionPolicy,
        Choice,
        PolicyConfig,
        compute_action_log_probability,
        compute_policy_entropy,
        create_acquisition_policy,
        sample_intervention_from_policy,
    )

__all__ = [
    "AcquisitionPolicy",
    "Choice",
    "Demonstrations",
    "GRPOBatch",
    "GRPOConfig",
    "GRPOTrainer",
    "GRPOUpdate",
    "Played",
    "PolicyConfig",
    "Task",
    "clone_expert",
    "collect_grpo_batch",
    "compute_action_log_probability",
    "compute_policy_entropy",
    "create_acquisition_policy",
    "create_grpo_trainer",
    "expert_demonstrations",
    "play",
    "random_tasks",
    "sample_intervention_from_policy",
]

# Learning needs JAX and optax; a campaign with a policy that has learned does not.
HOMES = dict.fromkeys(__all__, "_policy") | {
    "clone_expert": "_clone",
    "Demonstrations": "_experts",
    "Task": "_experts",
    "expert_demonstrations": "_experts",
    "random_tasks": "_experts",
    "Played": "_game",
    "play": "_game",
}
HOMES |= {name: "_grpo" for name in __all__ if "GRPO" in name or "grpo" in name}


def __getattr__(name: str) -> object:
    return open_name(__name__, HOMES, name)
