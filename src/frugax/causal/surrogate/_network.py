"""The network: axial attention over pairs of variables.

A pair is a token. In each block tokens look along their row (one parent, all children),
along their column (one child, all parents) and at their transpose. No weight depends on
the number of variables. The same lines run in NumPy, for an answer without compiling,
and in JAX, for training.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ._pairs import PAIR_FEATURES, Evidence
from ._subsets import NEVER, members, others, squared

HEADS = 4
_FLOOR = -40.0  # log-probabilities below are all the same: not believed

# Arrays of NumPy or of JAX, by name; those of all blocks are stacked.
Weights = dict[str, Any]


class Answer(NamedTuple):
    """What the network says of a batch.

    Attributes:
        log_sets: log-probability of each child's parent sets [batch, width, sets].
        edges: probability of each edge, parent first [batch, width, width].
    """

    log_sets: Float[Any, "b w s"]
    edges: Float[Any, "b w w"]


def initial_weights(seed: int, hidden: int, blocks: int) -> Weights:
    """Weights before training: float32, of NumPy.

    The answer is then the mean of both posteriors' logarithms, whatever the pairs say.

    Args:
        seed: of the draw.
        hidden: channels of a token, a multiple of 4.
        blocks: how often tokens look at each other, >= 0.

    Raises:
        ValueError: a size is out of its range.
    """
    if hidden < HEADS or hidden % HEADS or blocks < 0:
        raise ValueError(
            f"hidden must be a multiple of {HEADS} and blocks >= 0, got hidden="
            f"{hidden} and blocks={blocks}."
        )
    rng = np.random.default_rng(seed)

    def dense(*shape: int, gain: float = 1.0) -> np.ndarray:
        scale = np.float32(gain / shape[-2] ** 0.5)
        return rng.standard_normal(shape, np.float32) * scale

    zeros = lambda *shape: np.zeros(shape, np.float32)
    return {
        "embed": dense(2 * PAIR_FEATURES, hidden),
        "embed_bias": zeros(hidden),
        "row": dense(blocks, hidden, 3 * hidden),
        "row_out": dense(blocks, hidden, hidden, gain=0.3),
        "column": dense(blocks, hidden, 3 * hidden),
        "column_out": dense(blocks, hidden, hidden, gain=0.3),
        "mix": dense(blocks, 2 * hidden, 2 * hidden),
        "mix_bias": zeros(blocks, 2 * hidden),
        "mix_out": dense(blocks, 2 * hidden, hidden, gain=0.3),
        "norms": np.ones((blocks, 3, hidden), np.float32),
        "norm": np.ones(hidden, np.float32),
        "edge": zeros(hidden, 1),
        "trust": zeros(hidden, 2),
        "trust_bias": np.full(2, np.log(np.expm1(0.5)), np.float32),  # softplus: 1/2
    }


def packed(weights: Weights) -> Float[np.ndarray, " n"]:
    """All weights in one row, by name: an optimiser's program for it is a short one.

    Args:
        weights: of the network.
    """
    return np.concatenate([np.ravel(weights[name]) for name in sorted(weights)])


def unpacked(row: Any, like: Weights, xp: Any = np) -> Weights:
    """Weights from one row.

    Args:
        row: from `packed`, or of the optimiser.
        like: weights of the same names and shapes.
        xp: `numpy` or `jax.numpy`.
    """
    names = sorted(like)
    ends = np.cumsum([like[name].size for name in names])
    parts = xp.split(row, ends[:-1].tolist())
    return {n: p.reshape(like[n].shape) for n, p in zip(names, parts, strict=True)}


def apply_network(
    weights: Weights,
    told: Evidence,
    mask: Any,
    *,
    temperature: float = 1.0,
    xp: Any = np,
) -> Answer:
    """Probabilities of parent sets and edges.

    Args:
        weights: from `initial_weights`, or trained.
        told: from `evidence`.
        mask: 1 for variables that are there [batch, width].
        temperature: log-probabilities are divided by it.
        xp: `numpy` or `jax.numpy`.
    """
    x = _tokens(weights, told.pairs, mask, xp)
    width = mask.shape[1]
    edge, trust = _heads(weights, x, mask, xp)
    of_others = edge[:, others(width), np.arange(width)[:, None]]
    sets = xp.asarray(members(width))
    linear, curved = (xp.maximum(p, _FLOOR) for p in (told.linear, told.curved))
    logits = of_others @ sets.T
    logits = logits + trust[:, :, :1] * linear + trust[:, :, 1:] * curved
    logits = xp.where(told.linear < NEVER / 2, NEVER, logits / temperature)
    log_sets = logits - _top(logits, xp)
    log_sets = log_sets - xp.log(xp.exp(log_sets).sum(-1))[..., None]
    return Answer(log_sets, squared(xp.exp(log_sets) @ sets))


def set_scores(
    weights: Weights,
    pairs: Any,
    mask: Any,
    target: Any,
    inside: Any,
    posteriors: Any,
    xp: Any = np,
) -> Any:
    """Scores of listed parent sets of one target in each data set [batch, k].

    Args:
        weights: of the network.
        pairs: features of pairs [batch, width, width, features].
        mask: 1 for variables that are there [batch, width].
        target: index of the target [batch].
        inside: 1 for the variables in each set [batch, k, width].
        posteriors: `linear` and `curved` of each set [batch, k, 2].
        xp: `numpy` or `jax.numpy`.
    """
    edge, trust = _heads(weights, _tokens(weights, pairs, mask, xp), mask, xp)
    into = xp.take_along_axis(edge, target[:, None, None], axis=2)  # [batch, width, 1]
    trusted = xp.take_along_axis(trust, target[:, None, None], axis=1)
    return (inside @ into)[..., 0] + (xp.maximum(posteriors, _FLOOR) * trusted).sum(-1)


_BLOCK = (
    "row", "row_out", "column", "column_out", "mix", "mix_bias", "mix_out", "norms",
)  # fmt: skip


def _tokens(weights: Weights, pairs: Any, mask: Any, xp: Any) -> Any:
    """What the network makes of each pair [batch, width, width, hidden]."""
    x = xp.concatenate([pairs, xp.swapaxes(pairs, 1, 2)], axis=-1)
    x = _gelu(x @ weights["embed"] + _last(weights["embed_bias"], x), xp)
    hide = (mask - 1)[:, None, None, None, :] * 1e9

    def block(x: Any, w: Weights) -> tuple[Any, None]:
        y = attend(normal(x, w["norms"][0], xp), w["row"], hide, xp)
        x = x + y @ w["row_out"]
        turned = xp.swapaxes(x, 1, 2)
        y = attend(normal(turned, w["norms"][1], xp), w["column"], hide, xp)
        x = x + xp.swapaxes(y @ w["column_out"], 1, 2)
        y = normal(x, w["norms"][2], xp)
        y = xp.concatenate([y, xp.swapaxes(y, 1, 2)], axis=-1) @ w["mix"]
        return x + _gelu(y + _last(w["mix_bias"], y), xp) @ w["mix_out"], None

    blocks = {name: weights[name] for name in _BLOCK}
    if xp is np:
        for index in range(len(blocks["row"])):
            x, _ = block(x, {name: w[index] for name, w in blocks.items()})
    elif len(blocks["row"]):
        import jax  # asking needs none

        # Compiled once, however many there are. What a block keeps for its gradient
        # would cost more to store and fetch, and to compile, than to compute again.
        x, _ = jax.lax.scan(jax.checkpoint(block, prevent_cse=False), x, blocks)
    return normal(x, weights["norm"], xp)


def _heads(weights: Weights, x: Any, mask: Any, xp: Any) -> tuple[Any, Any]:
    """What each edge adds [batch, width, width], trust in each posterior [.., 2]."""
    share = mask / xp.maximum(mask.sum(1)[:, None], 1.0)
    pooled = (x * share[:, :, None, None]).sum(1)
    trust = pooled @ weights["trust"]
    trust = _softplus(trust + _last(weights["trust_bias"], trust), xp)
    return (x @ weights["edge"])[..., 0], trust


def _last(vector: Any, like: Any) -> Any:
    return vector.reshape((1,) * (like.ndim - 1) + (-1,))


def _gelu(x: Any, xp: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


def _softplus(x: Any, xp: Any) -> Any:
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))


def normal(x: Any, gain: Any, xp: Any) -> Any:
    """Channels with mean 0 and variance 1, times their gain."""
    x = x - x.mean(-1)[..., None]
    return x / xp.sqrt((x * x).mean(-1)[..., None] + 1e-6) * _last(gain, x)


def _top(x: Any, xp: Any) -> Any:
    """The greatest of each row, which a softmax takes off: its gradient is nothing."""
    if xp is np:
        return x.max(-1)[..., None]
    from jax.lax import stop_gradient  # asking needs no JAX

    return stop_gradient(x.max(-1)[..., None])


def attend(x: Any, qkv: Any, hide: Any, xp: Any) -> Any:
    """Attention along the third axis of [batch, rows, tokens, hidden]."""
    b, r, t, h = x.shape
    split = (x @ qkv).reshape(b, r, t, 3, HEADS, h // HEADS)
    q, k, v = (xp.swapaxes(split[:, :, :, i], 2, 3) for i in range(3))
    logits = q @ xp.swapaxes(k, 3, 4) * (h // HEADS) ** -0.5 + hide
    w = xp.exp(logits - _top(logits, xp))
    w = w / w.sum(-1)[..., None]
    return xp.swapaxes(w @ v, 2, 3).reshape(b, r, t, h)
