"""A learned policy, which campaigns accept in place of a policy's name."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.checks import check_whole
from frugax.causal.policy import Outlook, expected_improvement

# Candidates that the policy chooses from.
PLACES = 64
_FEATURES = 10
# Finite, because -inf minus -inf is NaN in the softmax of a list without candidates.
_NEVER = -1e9

# Arrays of NumPy or of JAX, by name.
PolicyWeights = dict[str, Any]


class Choice(NamedTuple):
    """A policy's choice among the candidates of a campaign, padded to `PLACES`.

    Attributes:
        features: of the candidates.
        affordable: the candidates that may be chosen.
        action: the chosen candidate.
        log_p: its log-probability.
        point: its position in the outlook.
    """

    features: Float[np.ndarray, "k f"]
    affordable: Bool[np.ndarray, " k"]
    action: int
    log_p: float
    point: int


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
        return self.choose(outlook, rng, greedy=self.greedy).point

    def choose(
        self, outlook: Outlook, rng: np.random.Generator, *, greedy: bool = False
    ) -> Choice:
        """Choose a candidate, and return the choice with its input."""
        features, affordable, points = list_candidates(outlook)
        log_p = log_policy(self.weights, features, affordable)
        # Gumbel noise on log-probabilities makes argmax a sample from them.
        noise = 0.0 if greedy else rng.gumbel(size=log_p.shape)
        action = int((log_p + noise).argmax())
        return Choice(
            features, affordable, action, float(log_p[action]), int(points[action])
        )


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
        features: of the candidates [..., k, f].
        affordable: which candidates may be chosen [..., k].
        xp: `numpy` or `jax.numpy`. A campaign asks a policy without JAX, and training
            traces the same code.
    """
    hidden = xp.tanh(features @ weights["embed"])
    logits = xp.where(affordable, hidden @ weights["score"], _NEVER)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - xp.log(xp.exp(logits).sum(-1, keepdims=True))


def list_candidates(
    outlook: Outlook,
) -> tuple[
    Float[np.ndarray, "k f"], Bool[np.ndarray, " k"], Int[np.ndarray, " candidates"]
]:
    """Choose candidates among the points of a campaign, and compute their features.

    Candidates are the most promising of each part of the affordable points. Features do
    not depend on units or currency.

    Returns:
        Features and affordability, padded to `PLACES`, and positions in the outlook.
    """
    ei, price = expected_improvement(outlook), outlook.price
    parts = np.array_split(np.flatnonzero(outlook.affordable), PLACES)
    points = np.array([p[(ei / price)[p].argmax()] for p in parts if len(p)], int)
    price = price[points] / price[points].mean()
    loss, mean = outlook.loss[:, points], outlook.loss.mean(0)
    scale = float(loss.std()) or 1.0
    wins = np.bincount(loss.argmin(1), minlength=len(points)) / len(loss)
    repeats = np.zeros(len(outlook.price))
    if outlook.repeats is not None:
        repeats = outlook.repeats
    # Logarithms and divisors bring all features to about the same size, as the network
    # does not normalise its inputs.
    features = [
        np.clip((mean[points] - mean[outlook.best]) / scale, -5, 5),
        loss.std(0) / scale,
        np.log(ei[points] / (scale * price) + 1e-4) / 3,
        np.log(wins + 0.01) / 3,
        outlook.allowed.mean(0)[points] - 1,
        np.log1p(repeats[points]),
        points == outlook.best,
        np.log(price),
        np.log1p(min(outlook.left, 99.0)) / 2,
        1.0,  # the bias of the network
    ]
    stacked = np.stack(np.broadcast_arrays(*features), -1).astype(np.float32)
    missing = PLACES - len(points)
    return (
        np.pad(stacked, ((0, missing), (0, 0))),
        np.arange(PLACES) < len(points),
        points,
    )
