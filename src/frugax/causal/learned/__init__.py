"""A policy that learns to choose experiments, from an expert and from its own games.

Start at `create_acquisition_policy`; `expert_demonstrations` and `clone_expert` teach
it, `create_grpo_trainer` lets it learn. Guide: docs/causal_policy.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
