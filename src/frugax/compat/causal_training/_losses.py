"""Losses between scores of parent sets and an expert's probabilities of them.

All take `(logits, expert_probs, parent_sets)`. A parent set that pads the list has a
logit of about -1e9 and probability 0, and so does not count in any of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def kl_divergence_loss(logits: Any, expert_probs: Any, parent_sets: Any = None) -> Any:
    """Kullback-Leibler divergence of the model from the expert, in nats; >= 0.

    Args:
        logits: of each parent set [k].
        expert_probs: the expert's probability of each [k]; sums to 1.
        parent_sets: accepted for the guide's call; not used.
    """
    del parent_sets
    return optax.losses.kl_divergence(jax.nn.log_softmax(logits), expert_probs)


def uncertainty_weighted_loss_jax(
    logits: Any, expert_probs: Any, parent_sets: Any = None
) -> Any:
    """The same, weighted from 1, where all sets are equally likely, to 2, if one is.

    Args:
        logits: of each parent set [k].
        expert_probs: the expert's probability of each [k]; sums to 1.
        parent_sets: accepted for the guide's call; not used.
    """
    entropy = jax.scipy.special.entr(expert_probs).sum()
    # At least log 2, because a certain expert would divide 0 by 0.
    most = jnp.log(jnp.maximum((expert_probs > 0).sum(), 2))
    return (2 - entropy / most) * kl_divergence_loss(logits, expert_probs, parent_sets)


# One function compiles and runs eagerly; the guide has a name for each.
kl_divergence_loss_jax = kl_divergence_loss
