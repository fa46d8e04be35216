"""A learned policy, which campaigns accept in place of a policy's name."""

import dataclasses
import os
from typing import Any

import numpy as np

from frugax import compress
from frugax.budget import SizeBudget
from frugax.causal.checks import check_kind, check_whole
from frugax.causal.policy import Outlook
from frugax.errors import CorruptFileError
from frugax.fileio import check_ownership

from ._board import FEATURES, PLACES, board_features, board_of, stacked

# Finite, because -inf minus -inf is NaN in the softmax of a set without places.
NEVER = -1e9

# Arrays of NumPy or of JAX, by name.
PolicyWeights = dict[str, Any]


def initial_policy_weights(seed: int, hidden: int) -> PolicyWeights:
    """Draw the weights before training: float32, of NumPy; all places equally likely.

    Args:
        seed: of the draw.
        hidden: channels of a place.
    """
    rng = np.random.default_rng(seed)

    def dense(rows: int, columns: int) -> np.ndarray:
        drawn = rng.standard_normal((rows, columns), np.float32)
        return drawn * np.float32(rows**-0.5)

    zeros = lambda *shape: np.zeros(shape, np.float32)
    return {
        "place": dense(FEATURES, hidden),
        "place_bias": zeros(hidden),
        "beside": dense(hidden, hidden),
        "set": dense(2 * hidden, hidden) * np.float32(0.5),
        "board": dense(2 * hidden, hidden) * np.float32(0.5),
        "beside_bias": zeros(hidden),
        "where": zeros(hidden, 1),  # logits of places
        "which": zeros(2 * hidden, 1),  # logits of sets
    }


def check_weights(weights: PolicyWeights) -> None:
    """Refuse arrays that are not the weights of such a network."""
    # The width is read off the weights themselves, so a policy of any size can be
    # loaded.
    place = np.shape(weights.get("place", 0.0)) if isinstance(weights, dict) else ()
    expected = initial_policy_weights(0, place[1] if len(place) == 2 else 1)
    if not isinstance(weights, dict) or weights.keys() != expected.keys():
        raise ValueError(f"weights must be a dict of {', '.join(expected)}.")
    for name, like in expected.items():
        shape = np.shape(weights[name])
        if shape != like.shape:
            raise ValueError(
                f"weights[{name!r}] must have shape {like.shape}, got {shape}."
            )
        if not np.isfinite(weights[name]).all():
            raise ValueError(
                f"weights[{name!r}] has values that are not finite: training went "
                "astray, perhaps with too large a learning rate."
            )


def log_policy(weights: PolicyWeights, told: Any, playable: Any, xp: Any = np) -> Any:
    """Log-probability of each place; the sum over a board is 1.

    Args:
        weights: from `initial_policy_weights`, or trained.
        told: from `board_features` [boards, sets, places, features].
        playable: which places may be chosen [boards, sets, places].
        xp: `numpy` or `jax.numpy`.

    Returns:
        [boards, sets, places]: that of the set, plus that of the place given the set.
    """
    mask = playable[..., None]
    # All operations exist in NumPy and JAX alike. A campaign then asks a policy without
    # JAX, and training traces the same text.
    x = _gelu(told @ weights["place"] + weights["place_bias"][None, None, None], xp)
    of_set = _pooled(x, mask, 2, xp)
    of_board = _pooled(x.reshape(len(x), -1, x.shape[-1]), _flat(mask), 1, xp)
    x = x @ weights["beside"] + (of_set @ weights["set"])[:, :, None]
    x = x + (of_board @ weights["board"])[:, None, None]
    x = _gelu(x + weights["beside_bias"][None, None, None], xp)
    where = xp.where(playable, (x @ weights["where"])[..., 0], NEVER)
    # A set first, then a place in it: sets with many places do not gain by their
    # number.
    which = (_pooled(x, mask, 2, xp) @ weights["which"])[..., 0]
    which = xp.where(playable.any(2), which, NEVER)
    return _log_softmax(which, xp)[..., None] + _log_softmax(where, xp)


def entropy_of(log_p: Any, xp: Any = np) -> Any:
    """Entropy of each board's choice in nats [boards].

    Args:
        log_p: from `log_policy`.
        xp: `numpy` or `jax.numpy`.
    """
    log_p = xp.maximum(log_p, -60.0)
    return -(xp.exp(log_p) * log_p).sum((1, 2))


def _pooled(x: Any, mask: Any, axis: int, xp: Any) -> Any:
    """Concatenate mean and maximum over the entries of a mask."""
    count = xp.maximum(mask.sum(axis), 1).astype(x.dtype)
    mean = xp.where(mask, x, 0.0).sum(axis) / count
    most = xp.where(mask.any(axis), xp.where(mask, x, NEVER).max(axis), 0.0)
    return xp.concatenate([mean, most], axis=-1)


def _flat(mask: Any) -> Any:
    return mask.reshape(len(mask), -1, 1)


def _log_softmax(x: Any, xp: Any) -> Any:
    x = x - x.max(-1)[..., None]
    return x - xp.log(xp.exp(x).sum(-1))[..., None]


def _gelu(x: Any, xp: Any) -> Any:
    # The tanh form, since NumPy has no erf.
    return 0.5 * x * (1 + xp.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The size of a policy's network.

    Attributes:
        hidden_dim: channels of a place; >= 1.
        seed: of its weights; >= 0.
    """

    hidden_dim: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("hidden_dim", self.hidden_dim, 1)
        check_whole("seed", self.seed, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One experiment, as the policy sees it.

    Attributes:
        set: number of the set of variables, on the board.
        place: which part of its range.
        point: the point of the outlook that stands for it.
    """

    set: int
    place: int
    point: int


@dataclasses.dataclass(frozen=True, eq=False)
class AcquisitionPolicy:
    """Chooses the next experiment by a network: `Campaign(policy=this)`.

    Attributes:
        weights: of the network, NumPy arrays by name.
        greedy: whether it takes the most probable experiment or samples one.
    """

    weights: PolicyWeights
    greedy: bool = True

    def __post_init__(self) -> None:
        check_weights(self.weights)

    def __call__(self, outlook: Outlook, rng: np.random.Generator) -> int:
        """Choose the point to try next.

        Args:
            outlook: the state of the campaign.
            rng: used by a policy that is not greedy.
        """
        if self.greedy:
            log_p, points = _asked(self, outlook)
            return int(points.ravel()[log_p.argmax()])
        return sample_intervention_from_policy(self, outlook, rng).point

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file of `frugax.compress`, whole or not at all.

        The weights are kept to a relative error of 0.05 %, all of them together.

        Args:
            path: the file; an existing one must hold a policy.

        Raises:
            OutputError: it cannot be written, or the file is of another kind.
        """
        check_ownership(path, AcquisitionPolicy.load, "policy")
        compress.save(path, dict(self.weights), SizeBudget(rel_error=0.0005))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "AcquisitionPolicy":
        """Read a file that `save` wrote.

        Args:
            path: the file.

        Raises:
            CorruptFileError: it is damaged, or holds something else.
            FileNotFoundError: the file does not exist.
        """
        with compress.open(path) as file:
            weights = dict(file.tree())
        try:
            return cls({name: np.asarray(w) for name, w in weights.items()})
        except ValueError as e:
            raise CorruptFileError(f"{os.fspath(path)} holds no policy: {e}") from e


def create_acquisition_policy(config: PolicyConfig | None = None) -> AcquisitionPolicy:
    """Make a policy before training: all sets and all places are equally likely.

    Args:
        config: its size; `PolicyConfig()` by default.

    Raises:
        TypeError: `config` is not a `PolicyConfig`.
    """
    config = PolicyConfig() if config is None else config
    check_kind("config", config, PolicyConfig)
    return AcquisitionPolicy(initial_policy_weights(config.seed, config.hidden_dim))


def sample_intervention_from_policy(
    policy: AcquisitionPolicy, outlook: Outlook, rng: np.random.Generator
) -> Choice:
    """Sample an experiment with the policy's probabilities.

    Args:
        policy: the policy.
        outlook: the state of a campaign.
        rng: the generator to draw from.
    """
    log_p, points = _asked(policy, outlook)
    # In float64: rng.choice refuses probabilities whose sum is off by more than 1.5e-8.
    p = np.exp(log_p.astype(np.float64))
    at = int(rng.choice(len(p), p=p / p.sum()))
    return Choice(
        set=at // PLACES, place=at % PLACES, point=int(points.reshape(-1)[at])
    )


def compute_action_log_probability(
    policy: AcquisitionPolicy, outlook: Outlook, choice: Choice
) -> float:
    """Compute the log-probability of a choice.

    Args:
        policy: the policy.
        outlook: the state of the campaign at the choice.
        choice: the chosen experiment.
    """
    return float(_asked(policy, outlook)[0][choice.set * PLACES + choice.place])


def compute_policy_entropy(policy: AcquisitionPolicy, outlook: Outlook) -> float:
    """Compute the entropy of a policy in nats; 0 if one experiment has all probability.

    Args:
        policy: the policy.
        outlook: the state of the campaign.
    """
    log_p, points = _asked(policy, outlook)
    return float(entropy_of(log_p.reshape(1, *points.shape))[0])


def _asked(
    policy: AcquisitionPolicy, outlook: Outlook
) -> tuple[np.ndarray, np.ndarray]:
    """Compute log-probabilities of all places, in one row, and their points."""
    one = board_of(outlook)
    board = stacked([one])
    log_p = log_policy(policy.weights, board_features(board), board.playable)
    return log_p.reshape(-1), one.point
