"""A policy that was learned: campaigns take it where they take the name of another."""

import dataclasses
import os

import numpy as np

from frugax import compress
from frugax.budget import SizeBudget
from frugax.causal.policy import Outlook
from frugax.errors import CorruptFileError
from frugax.fileio import check_ownership

from .._numbers import check_kind, check_whole
from ._board import PLACES, board_of, stacked
from ._features import features
from ._network import Weights, check_weights, entropy_of, initial_weights, log_policy


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
        greedy: whether it takes the likeliest experiment; else one by chance.
    """

    weights: Weights
    greedy: bool = True

    def __post_init__(self) -> None:
        check_weights(self.weights)

    def __call__(self, outlook: Outlook, rng: np.random.Generator) -> int:
        """The point to try next.

        Args:
            outlook: what the campaign knows.
            rng: used if it is not greedy.
        """
        if self.greedy:
            log_p, points = _asked(self, outlook)
            return int(points.ravel()[log_p.argmax()])
        return sample_intervention_from_policy(self, outlook, rng).point

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file of `frugax.compress`, whole or not at all.

        Weights are kept to 0.05 % of their size, all of them together.

        Args:
            path: the file; one that is there must hold a policy.

        Raises:
            OutputError: it cannot be written, or something else is there.
        """
        check_ownership(path, AcquisitionPolicy.load, "policy")
        compress.save(path, dict(self.weights), SizeBudget(rel_error=0.0005))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "AcquisitionPolicy":
        """Read one that was saved.

        Args:
            path: the file.

        Raises:
            CorruptFileError: it is damaged, or holds something else.
            FileNotFoundError: there is none.
        """
        with compress.open(path) as file:
            weights = dict(file.tree())
        try:
            return cls({name: np.asarray(w) for name, w in weights.items()})
        except ValueError as e:
            raise CorruptFileError(f"{os.fspath(path)} holds no policy: {e}") from e


def create_acquisition_policy(config: PolicyConfig | None = None) -> AcquisitionPolicy:
    """A policy before training: every set of variables and every place are as likely.

    Args:
        config: its size; the usual one by default.

    Raises:
        TypeError: it is no `PolicyConfig`.
    """
    config = PolicyConfig() if config is None else config
    check_kind("config", config, PolicyConfig)
    return AcquisitionPolicy(initial_weights(config.seed, config.hidden_dim))


def sample_intervention_from_policy(
    policy: AcquisitionPolicy, outlook: Outlook, rng: np.random.Generator
) -> Choice:
    """An experiment by chance, as likely as the policy says.

    Args:
        policy: the policy.
        outlook: what a campaign knows.
        rng: decides.
    """
    log_p, points = _asked(policy, outlook)
    p = np.exp(log_p.astype(np.float64))
    at = int(rng.choice(len(p), p=p / p.sum()))
    return Choice(
        set=at // PLACES, place=at % PLACES, point=int(points.reshape(-1)[at])
    )


def compute_action_log_probability(
    policy: AcquisitionPolicy, outlook: Outlook, choice: Choice
) -> float:
    """How likely a policy was to choose so, as a logarithm.

    Args:
        policy: the policy.
        outlook: what the campaign knew.
        choice: what was chosen.
    """
    return float(_asked(policy, outlook)[0][choice.set * PLACES + choice.place])


def compute_policy_entropy(policy: AcquisitionPolicy, outlook: Outlook) -> float:
    """How undecided a policy is, in nats; 0 if only one experiment comes into question.

    Args:
        policy: the policy.
        outlook: what the campaign knows.
    """
    log_p, points = _asked(policy, outlook)
    return float(entropy_of(log_p.reshape(1, *points.shape))[0])


def _asked(
    policy: AcquisitionPolicy, outlook: Outlook
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of all places, in one row, and the points they stand for."""
    one = board_of(outlook)
    board = stacked([one])
    log_p = log_policy(policy.weights, features(board), board.playable)
    return log_p.reshape(-1), one.point
