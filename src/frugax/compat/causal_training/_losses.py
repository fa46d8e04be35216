"""Losses between scores of parent sets and an expert's probabilities of them.

All take `(logits, expert, parent_sets)`. A parent set that pads the list has a logit
of about -1e9 and no probability, and so no part in any of them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.causal.surrogate import ParentSetPosterior


def kl_divergence_loss_jax(
    logits: Any, expert_probs: Any, parent_sets: Any = None, temperature: float = 1.0
) -> Any:
    """Kullback-Leibler divergence of the model from the expert, in nats; >= 0.

    Args:
        logits: of each parent set [k].
        expert_probs: the expert's probability of each [k]; sums to 1.
        parent_sets: not looked at.
        temperature: logits are divided by it.
    """
    del parent_sets
    log_q = jax.nn.log_softmax(logits / temperature)
    # 0 log 0 is 0, but log(0) would be -inf here and NaN after the product.
    certain = expert_probs > 0
    log_p = jnp.log(jnp.where(certain, expert_probs, 1.0))
    return jnp.where(certain, expert_probs * (log_p - log_q), 0.0).sum()


def uncertainty_weighted_loss_jax(
    logits: Any, expert_probs: Any, parent_sets: Any = None, weight_scale: float = 1.0
) -> Any:
    """The same, weighted more the surer the expert is.

    The weight goes from 1, where all sets are equally likely, to 1 + `weight_scale`.

    Args:
        logits: of each parent set [k].
        expert_probs: the expert's probability of each [k]; sums to 1.
        parent_sets: not looked at.
        weight_scale: how much more a certain answer weighs.
    """
    certain = expert_probs > 0
    log_p = jnp.log(jnp.where(certain, expert_probs, 1.0))
    entropy = -(expert_probs * log_p).sum()
    # At least log 2, because a certain expert would divide 0 by 0.
    most = jnp.log(jnp.maximum(certain.sum(), 2).astype(logits.dtype))
    weight = 1 + weight_scale * (1 - entropy / most)
    return weight * kl_divergence_loss_jax(logits, expert_probs, parent_sets)


def kl_divergence_loss(
    logits: Any,
    expert_posterior: Any,
    parent_sets: Any = None,
    temperature: float = 1.0,
) -> Any:
    """`kl_divergence_loss_jax`, also of a posterior object.

    Args:
        logits: of each parent set [k].
        expert_posterior: probabilities [k], or a `ParentSetPosterior` of any sets. It
            counts as given that one of `parent_sets` is true: a listed set that it
            lacks has probability 0, and the others are scaled to add up to 1.
        parent_sets: the sets that the logits are of; needed for an object only.
        temperature: logits are divided by it.

    Raises:
        ValueError: `parent_sets` are missing, or the expert believes in none of them.
    """
    probs = _as_probs(expert_posterior, parent_sets)
    return kl_divergence_loss_jax(logits, probs, parent_sets, temperature)


def uncertainty_weighted_loss(
    logits: Any,
    expert_posterior: Any,
    parent_sets: Any = None,
    weight_scale: float = 1.0,
) -> Any:
    """`uncertainty_weighted_loss_jax`, also of a posterior object.

    Args:
        logits: of each parent set [k].
        expert_posterior: as in `kl_divergence_loss`.
        parent_sets: as there.
        weight_scale: how much more a certain answer weighs.

    Raises:
        ValueError: as there.
    """
    probs = _as_probs(expert_posterior, parent_sets)
    return uncertainty_weighted_loss_jax(logits, probs, parent_sets, weight_scale)


def calibrated_loss(
    logits: Any,
    expert_posterior: Any,
    parent_sets: Sequence[frozenset[str]],
    true_parent_set: frozenset[str],
    calibration_weight: float = 0.1,
) -> Any:
    """Divergence from the expert, and surprise at the true set.

    Args:
        logits: of each parent set [k].
        expert_posterior: as in `kl_divergence_loss`.
        parent_sets: the sets that the logits are of.
        true_parent_set: one of them.
        calibration_weight: of the surprise.

    Raises:
        ValueError: the true set is not listed.
    """
    listed = [frozenset(s) for s in parent_sets]
    if frozenset(true_parent_set) not in listed:
        raise ValueError(
            f"the true parents {sorted(true_parent_set)} are not in parent_sets: list "
            "them, or nothing can be learnt of them."
        )
    place = listed.index(frozenset(true_parent_set))
    surprise = -jax.nn.log_softmax(logits)[place]
    return (
        kl_divergence_loss(logits, expert_posterior, parent_sets)
        + calibration_weight * surprise
    )


def multi_target_loss(
    logits: Sequence[Any], expert_posteriors: Sequence[Any], parent_sets: Sequence[Any]
) -> Any:
    """Mean of `kl_divergence_loss` over several targets.

    Args:
        logits: of each target.
        expert_posteriors: of each target.
        parent_sets: of each target.
    """
    each = [
        kl_divergence_loss(*one)
        for one in zip(logits, expert_posteriors, parent_sets, strict=True)
    ]
    return jnp.stack(each).mean()


def _as_probs(expert: Any, parent_sets: Any) -> Any:
    if not isinstance(expert, ParentSetPosterior):
        return expert
    if parent_sets is None:
        raise ValueError(
            "a ParentSetPosterior needs parent_sets, the sets that the logits are of."
        )
    place = {frozenset(s): i for i, s in enumerate(parent_sets)}
    probs = np.zeros(len(place), np.float32)
    for believed, p in zip(expert.parent_sets, expert.probs, strict=True):
        if believed in place:
            probs[place[believed]] = p
    total = float(probs.sum())
    if not total:
        raise ValueError(
            f"the expert believes in none of the {len(place)} parent_sets: list "
            f"{sorted(expert.best)} too."
        )
    return jnp.asarray(probs / total)
