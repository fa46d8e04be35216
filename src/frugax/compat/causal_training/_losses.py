"""Losses between scores of parent sets and an expert's probabilities of them.

All take `(logits, expert, parent_sets)`. A parent set that pads the list has a logit
of about -1e9 and probability 0, and so does not count in any of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from frugax.causal.surrogate import ParentSetPosterior


def kl_divergence_loss_jax(
    logits: Any, expert_probs: Any, parent_sets: Any = None
) -> Any:
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
    weight = 2 - entropy / most
    return weight * kl_divergence_loss_jax(logits, expert_probs, parent_sets)


def kl_divergence_loss(logits: Any, expert: Any, parent_sets: Any = None) -> Any:
    """`kl_divergence_loss_jax`, also of a posterior object.

    Args:
        logits: of each parent set [k].
        expert: probabilities [k], or a `ParentSetPosterior` of any sets, conditioned on
            `parent_sets`: a listed set that it lacks has probability 0.
        parent_sets: the sets that the logits are of; needed for an object only.

    Raises:
        ValueError: `parent_sets` are missing, or the expert believes in none of them.
    """
    if isinstance(expert, ParentSetPosterior):
        if parent_sets is None:
            raise ValueError(
                f"parent_sets is None, but the expert is {type(expert).__name__}: give "
                "the sets that the logits are of."
            )
        believed = dict(zip(expert.parent_sets, expert.probs, strict=True))
        probs = np.array([believed.get(frozenset(s), 0.0) for s in parent_sets])
        if not probs.sum() > 0:
            raise ValueError(
                f"the expert believes in none of the {len(probs)} parent_sets: list "
                f"{sorted(expert.best)} too."
            )
        expert = jnp.asarray(probs / probs.sum(), np.float32)
    return kl_divergence_loss_jax(logits, expert, parent_sets)
