"""A learned policy, which campaigns accept in place of a policy's name."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from frugax.causal.checks import check_whole
from frugax.causal.policy import Outlook, expected_improvement
from frugax.causal.posterior import Points

# Candidates that the policy chooses from.
PLACES = 64
_FEATURES = 10
# Finite, because -inf minus -inf is NaN in the softmax of a list without candidates.
_NEVER = -1e9

# Arrays of NumPy or of JAX, by name.
PolicyWeights = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class AcquisitionPolicy:
    """Chooses the next experiment by a network: `Campaign(policy=this)`.

    Attributes:
        weights: of the network, NumPy arrays by name.
        greedy: whether it takes the most probable experiment or samples one.

    Raises:
        ValueError: a weight is not finite.
    """

    weights: PolicyWeights
    greedy: bool = True

    def __post_init__(self) -> None:
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
        candidates, places = shortlist(outlook)
        affordable = candidates.affordable
        log_p = log_policy(self.weights, candidate_features(candidates), affordable)
        # Gumbel noise on log-probabilities makes argmax a sample from them.
        noise = 0.0 if self.greedy else rng.gumbel(size=log_p.shape)
        return int(places[(log_p + noise).argmax()])


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
    drawn = np.random.default_rng(seed).standard_normal((_FEATURES, hidden_dim))
    return AcquisitionPolicy(
        {
            "embed": (drawn / _FEATURES**0.5).astype(np.float32),
            "score": np.zeros(hidden_dim, np.float32),
        }
    )


def log_policy(
    weights: PolicyWeights, features: Any, affordable: Any, xp: Any = np
) -> Any:
    """Log-probability of each candidate; the probabilities of a list sum to 1.

    Args:
        weights: of an `AcquisitionPolicy`.
        features: from `candidate_features` [..., k, f].
        affordable: which candidates may be chosen [..., k].
        xp: `numpy` or `jax.numpy`. A campaign asks a policy without JAX, and training
            traces the same code.
    """
    hidden = xp.tanh(features @ weights["embed"])
    logits = xp.where(affordable, hidden @ weights["score"], _NEVER)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - xp.log(xp.exp(logits).sum(-1, keepdims=True))


def shortlist(outlook: Outlook) -> tuple[Outlook, Int[np.ndarray, " k"]]:
    """Keep up to `PLACES` candidates, and return their positions in the outlook.

    These are the most promising of each part of the affordable points, and the one to
    recommend now.
    """
    worth = expected_improvement(outlook) / outlook.price
    parts = np.array_split(np.flatnonzero(outlook.affordable), PLACES - 1)
    chosen = [part[worth[part].argmax()] for part in parts if len(part)]
    places = np.union1d(chosen, [outlook.best]).astype(int)
    # Points are listed group by group, so sorted ones keep their order.
    points, _ = Points.from_interventions([outlook.points.at(int(i)) for i in places])
    repeats = outlook.repeats
    candidates = dataclasses.replace(
        outlook,
        points=points,
        loss=outlook.loss[:, places],
        allowed=outlook.allowed[:, places],
        price=outlook.price[places],
        affordable=outlook.affordable[places],
        breach=outlook.breach[places],
        repeats=np.zeros(len(places)) if repeats is None else repeats[places],
    )
    return candidates, places


def candidate_features(candidates: Outlook) -> Float[np.ndarray, "k f"]:
    """Compute features of each candidate that do not depend on units or currency.

    Args:
        candidates: from `shortlist`.
    """
    loss, best = candidates.loss, candidates.best
    scale = float(loss.std()) or 1.0
    mean = loss.mean(0)
    price = candidates.price / candidates.price.mean()
    worth = expected_improvement(candidates) / (scale * price)
    wins = np.bincount(loss.argmin(1), minlength=len(mean)) / len(loss)
    repeats = candidates.repeats
    assert repeats is not None  # set by `shortlist`
    # Logarithms and divisors bring all features to about the same size, as the network
    # does not normalise its inputs.
    features = [
        np.clip((mean - mean[best]) / scale, -5, 5),
        loss.std(0) / scale,
        np.log(worth + 1e-4) / 3,
        np.log(wins + 0.01) / 3,
        candidates.allowed.mean(0) - 1,
        np.log1p(repeats),
        np.arange(len(mean)) == best,
        np.log(price),
        np.log1p(min(candidates.left, 99.0)) / 2,
        1.0,  # the bias of the network
    ]
    return np.stack(np.broadcast_arrays(*features), -1).astype(np.float32)
