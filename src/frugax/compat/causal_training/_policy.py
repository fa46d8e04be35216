"""A learned policy, which campaigns accept in place of the default.

It is a portfolio: at each experiment a network chooses whether the expected improvement
or the knowledge gradient chooses the experiment.

References:
    Hoffman, Brochu & de Freitas 2011, UAI ("Portfolio allocation for Bayesian
    optimization").
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from frugax.causal.policy import Outlook, expected_improvement, gain, improvement
from frugax.options import check_integer

_RULES = (improvement, gain)
_FEATURES = 5

# Arrays of NumPy or of JAX, by name.
PolicyWeights = dict[str, Any]


class Choice(NamedTuple):
    """A policy's choice in one state of a campaign.

    Attributes:
        features: of the state.
        action: the rule that chose.
        log_p: the log-probability of the rule.
        point: the chosen experiment's position in the outlook.
    """

    features: Float[np.ndarray, " f"]
    action: int
    log_p: float
    point: int


@dataclasses.dataclass(frozen=True, eq=False)
class AcquisitionPolicy:
    """Chooses the next experiment by a network: `Campaign(policy=this)`.

    Attributes:
        weights: of the network, NumPy arrays by name.
        greedy: whether it takes the most probable rule or samples one.

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
            rng: used by a policy that is not greedy, and by rules that are random.
        """
        return self.choose(outlook, rng, greedy=self.greedy).point

    def choose(
        self, outlook: Outlook, rng: np.random.Generator, *, greedy: bool = False
    ) -> Choice:
        """Choose a rule and a point, and return them with the network's input."""
        features = outlook_features(outlook)
        log_p = log_policy(self.weights, features)
        # Gumbel noise on log-probabilities makes argmax a sample from them.
        noise = 0.0 if greedy else rng.gumbel(size=log_p.shape)
        action = int((log_p + noise).argmax())
        point = _RULES[action](outlook, rng)
        return Choice(features, action, float(log_p[action]), point)


def create_acquisition_policy(
    hidden_dim: int = 32, *, seed: int = 0
) -> AcquisitionPolicy:
    """Make a policy before training: all rules are equally likely.

    Args:
        hidden_dim: channels of the network; >= 1.
        seed: of the weights; >= 0.

    Raises:
        ValueError: a number is out of its range.
    """
    check_integer("hidden_dim", hidden_dim)
    check_integer("seed", seed, minimum=0)
    drawn = np.random.default_rng(seed).standard_normal((_FEATURES, hidden_dim))
    return AcquisitionPolicy(
        {
            "embed": (drawn / _FEATURES**0.5).astype(np.float32),
            "score": np.zeros((hidden_dim, len(_RULES)), np.float32),
        }
    )


def log_policy(weights: PolicyWeights, features: Any, xp: Any = np) -> Any:
    """Log-probability of each rule [..., rules].

    Args:
        weights: of an `AcquisitionPolicy`.
        features: of states of campaigns [..., f].
        xp: `numpy` or `jax.numpy`. A campaign asks a policy without JAX, and training
            traces the same code.
    """
    logits = xp.tanh(features @ weights["embed"]) @ weights["score"]
    logits = logits - logits.max(-1, keepdims=True)
    return logits - xp.log(xp.exp(logits).sum(-1, keepdims=True))


def outlook_features(outlook: Outlook) -> Float[np.ndarray, " f"]:
    """Describe the state of a campaign, in no unit and no currency."""
    scale = float(outlook.loss.std()) or 1.0
    # Logarithms bring all features to about the same size, as the network does not
    # normalise its inputs.
    features = [
        np.log1p(min(outlook.left, 99.0)),
        np.log(outlook.noise / scale + 1e-3) / 3,
        np.log(outlook.loss[:, outlook.best].std() / scale + 1e-3) / 3,
        np.log(expected_improvement(outlook).max() / scale + 1e-3) / 3,
        1.0,  # the bias of the network
    ]
    return np.array(features, np.float32)
