"""A learned policy, which campaigns accept in place of a policy's name."""

import dataclasses
from typing import Any

import numpy as np

from frugax.causal.checks import check_whole
from frugax.causal.policy import Outlook

from ._shortlist import FEATURES, shortlist_features, shortlist_of, stack_shortlists

# Finite, because -inf minus -inf is NaN in the softmax of a list without candidates.
_NEVER = -1e9

# Arrays of NumPy or of JAX, by name.
PolicyWeights = dict[str, Any]


def log_policy(
    weights: PolicyWeights, features: Any, affordable: Any, xp: Any = np
) -> Any:
    """Log-probability of each candidate; the sum over a list is 1.

    Args:
        weights: of an `AcquisitionPolicy`.
        features: from `shortlist_features` [b, k, f].
        affordable: which candidates may be chosen [b, k].
        xp: `numpy` or `jax.numpy`. A campaign asks a policy without JAX, and training
            traces the same code.

    Returns:
        [b, k].
    """
    mask = affordable[..., None]
    x = _gelu(features @ weights["embed"] + weights["embed_bias"][None, None], xp)
    # Each candidate sees the mean and the maximum over all of them.
    count = xp.maximum(mask.sum(1), 1).astype(x.dtype)
    mean = xp.where(mask, x, 0.0).sum(1) / count
    most = xp.where(mask.any(1), xp.where(mask, x, _NEVER).max(1), 0.0)
    pooled = xp.concatenate([mean, most], axis=-1) @ weights["pooled"]
    x = _gelu(
        x @ weights["mix"] + pooled[:, None] + weights["mix_bias"][None, None], xp
    )
    logits = xp.where(affordable, (x @ weights["score"])[..., 0], _NEVER)
    logits = logits - logits.max(-1)[..., None]
    return logits - xp.log(xp.exp(logits).sum(-1))[..., None]


def _gelu(x: Any, xp: Any) -> Any:
    # The tanh form, since NumPy has no erf.
    return 0.5 * x * (1 + xp.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


@dataclasses.dataclass(frozen=True, eq=False)
class AcquisitionPolicy:
    """Chooses the next experiment by a network: `Campaign(policy=this)`.

    Attributes:
        weights: of the network, NumPy arrays by name.
        greedy: whether it takes the most probable experiment or samples one.

    Raises:
        ValueError: the weights are not those of such a network, or not finite.
    """

    weights: PolicyWeights
    greedy: bool = True

    def __post_init__(self) -> None:
        # The width is read off the weights themselves, so any width is accepted.
        width = np.shape(self.weights.get("embed_bias", [0]))[0]
        expected = {n: w.shape for n, w in _initial_weights(0, width).items()}
        given = {name: np.shape(w) for name, w in self.weights.items()}
        if given != expected:
            raise ValueError(
                f"weights must have shapes {expected}, got {given!r:.400}."
            )
        for name, array in self.weights.items():
            if not np.isfinite(array).all():
                raise ValueError(
                    f"weights[{name!r}] has values that are not finite: train again, "
                    "with a smaller learning rate."
                )

    def __call__(self, outlook: Outlook, rng: np.random.Generator) -> int:
        """Choose the point to try next.

        Args:
            outlook: the state of the campaign.
            rng: used by a policy that is not greedy.
        """
        lists = stack_shortlists([shortlist_of(outlook)])
        log_p = log_policy(self.weights, shortlist_features(lists), lists.there)[0]
        # Gumbel noise on log-probabilities makes argmax a sample from them.
        noise = 0.0 if self.greedy else rng.gumbel(size=log_p.shape)
        return int(lists.point[0, (log_p + noise).argmax()])


def create_acquisition_policy(
    hidden_dim: int = 32, *, seed: int = 0
) -> AcquisitionPolicy:
    """Make a policy before training: all candidates are equally likely.

    Args:
        hidden_dim: channels of a candidate; >= 1.
        seed: of the weights; >= 0.

    Raises:
        ValueError: a number is out of its range.
    """
    check_whole("hidden_dim", hidden_dim, 1)
    check_whole("seed", seed, 0)
    return AcquisitionPolicy(_initial_weights(seed, hidden_dim))


def _initial_weights(seed: int, hidden: int) -> PolicyWeights:
    rng = np.random.default_rng(seed)

    def dense(rows: int, columns: int) -> np.ndarray:
        drawn = rng.standard_normal((rows, columns), np.float32)
        return drawn * np.float32(rows**-0.5)

    return {
        "embed": dense(FEATURES, hidden),
        "embed_bias": np.zeros(hidden, np.float32),
        "mix": dense(hidden, hidden),
        "pooled": dense(2 * hidden, hidden) * np.float32(0.5),
        "mix_bias": np.zeros(hidden, np.float32),
        "score": np.zeros((hidden, 1), np.float32),
    }
