"""The policy's network: which set of variables, and where on their range.

Places are looked at alone, then beside the others of their set and of the board. It
runs in NumPy where a campaign asks and in JAX where it learns.
"""

from typing import Any

import numpy as np

from ._features import FEATURES

NEVER = -1e9

# Arrays of NumPy or of JAX, by name.
Weights = dict[str, Any]


def initial_weights(seed: int, hidden: int) -> Weights:
    """Weights before training: float32, of NumPy. All places are then as likely.

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


def check_weights(weights: Weights) -> None:
    """Refuse arrays that are no weights of such a network.

    Raises:
        ValueError: one is missing or too much, of another shape, or not finite.
    """
    place = np.shape(weights.get("place", 0.0)) if isinstance(weights, dict) else ()
    expected = initial_weights(0, place[1] if len(place) == 2 else 1)
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


def log_policy(weights: Weights, told: Any, playable: Any, xp: Any = np) -> Any:
    """Log-probability of each place; the sum over a board is 1.

    Args:
        weights: from `initial_weights`, or trained.
        told: from `features` [boards, sets, places, features].
        playable: which places may be chosen [boards, sets, places].
        xp: `numpy` or `jax.numpy`.

    Returns:
        [boards, sets, places]: that of the set, plus that of the place given the set.
    """
    mask = playable[..., None]
    x = _gelu(told @ weights["place"] + weights["place_bias"][None, None, None], xp)
    of_set = _pooled(x, mask, 2, xp)
    of_board = _pooled(x.reshape(len(x), -1, x.shape[-1]), _flat(mask), 1, xp)
    x = x @ weights["beside"] + (of_set @ weights["set"])[:, :, None]
    x = x + (of_board @ weights["board"])[:, None, None]
    x = _gelu(x + weights["beside_bias"][None, None, None], xp)
    where = xp.where(playable, (x @ weights["where"])[..., 0], NEVER)
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
    """Mean and greatest over what is there."""
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
    return 0.5 * x * (1 + xp.tanh(0.7978846 * (x + 0.044715 * x * x * x)))
