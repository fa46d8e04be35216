"""Behaviour cloning: teach a policy to choose as an expert did."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from frugax import train

from .._numbers import check_kind, check_real, check_whole
from ._experts import Demonstrations
from ._features import features
from ._network import Weights, log_policy
from ._policy import AcquisitionPolicy

_MOST_MOMENTS = 1 << 16


def clone_expert(
    policy: AcquisitionPolicy,
    shown: Demonstrations,
    *,
    steps: int = 400,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    seed: int = 0,
) -> tuple[AcquisitionPolicy, train.FitResult]:
    """Make what an expert chose likely; one program is compiled.

    Args:
        policy: to begin with.
        shown: what the expert knew and chose.
        steps: to take.
        batch_size: moments a step; at most 65,536.
        learning_rate: the largest; it falls to nothing.
        seed: of the order.

    Returns:
        The policy, and what `frugax.train.fit` says of the training.

    Raises:
        TypeError: it is no policy with weights, or what was shown is no
            `Demonstrations`.
        ValueError: a number is out of its range, or training gave weights that are
            not finite.
    """
    check_kind("policy", policy, AcquisitionPolicy)
    check_kind("shown", shown, Demonstrations)
    check_whole("steps", steps, 1)
    check_whole("batch_size", batch_size, 1)
    check_whole("seed", seed, 0)
    check_real("learning_rate", learning_rate)
    if batch_size > _MOST_MOMENTS:
        raise ValueError(
            f"batch_size must be <= {_MOST_MOMENTS}, got {batch_size}: each moment "
            "takes 8 KB, several times over."
        )
    told, playable = features(shown.board), shown.board.playable
    rate = optax.cosine_decay_schedule(learning_rate, steps)
    step = train.make_train_step(
        _surprise, optax.adamw(rate, weight_decay=1e-3), clip=1.0, compile_budget=1
    )

    def batch_of(index: int) -> dict[str, Any]:
        rng = np.random.default_rng([seed, index])
        some = rng.integers(0, len(shown), batch_size)
        return {
            "told": told[some],
            "playable": playable[some],
            "choice": shown.choice[some],
        }

    result = train.fit(step, step.init(policy.weights), batch_of, steps=steps)
    weights = {name: np.asarray(w) for name, w in result.state.params.items()}
    return AcquisitionPolicy(weights, greedy=policy.greedy), result


def _surprise(weights: Weights, batch: dict[str, Any]) -> Any:
    log_p = log_policy(weights, batch["told"], batch["playable"], xp=jnp)
    log_p = log_p.reshape(len(log_p), -1)
    return -jnp.take_along_axis(log_p, batch["choice"][:, None], axis=1).mean()
