"""The network's weights in one row, as they are trained.

Compiling a step costs about as much for each array of weights as for a layer: the
optimiser updates each, and a loop over blocks fetches each and puts its gradient back.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

# Arrays of NumPy or of JAX, by name; those of all blocks are stacked.
Weights = dict[str, Any]

BLOCK = (
    "row", "row_out", "column", "column_out", "mix", "mix_bias", "mix_out", "norms",
)  # fmt: skip
_REST = ("embed", "embed_bias", "norm", "edge", "trust", "trust_bias")


def of_look(hidden: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of what half a block's row holds: weights to look with, out, gain."""
    return (hidden, 3 * hidden), (hidden, hidden), (hidden,)


def of_mix(hidden: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the rest of a block's row: gain, weights in, bias, weights out."""
    wide = 2 * hidden
    return (hidden,), (wide, wide), (wide,), (wide, hidden)


def cut(row: Any, shapes: Sequence[tuple[int, ...]], xp: Any) -> list[Any]:
    """Arrays of these shapes from the last axis of a row.

    Args:
        row: [..., n].
        shapes: of the arrays, n numbers in all.
        xp: `numpy` or `jax.numpy`.
    """
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = xp.split(row, ends[:-1].tolist(), axis=-1)
    return [p.reshape(*p.shape[:-1], *s) for p, s in zip(parts, shapes, strict=True)]


def packed(weights: Weights) -> Float[np.ndarray, " n"]:
    """All weights in one row, block after block.

    Args:
        weights: of the network, by name.
    """
    in_blocks = []
    for index in range(len(weights["row"])):
        w = {name: weights[name][index] for name in BLOCK}
        in_blocks += [w["row"], w["row_out"], w["norms"][0]]
        in_blocks += [w["column"], w["column_out"], w["norms"][1]]
        in_blocks += [w["norms"][2], w["mix"], w["mix_bias"], w["mix_out"]]
    rest = [weights[name] for name in _REST]
    return np.concatenate([np.ravel(w) for w in (*in_blocks, *rest)])


def opened(row: Any, like: Weights, xp: Any) -> Weights:
    """Weights to compute with, those of the blocks still in rows, as `"blocks"`.

    Args:
        row: from `packed`, or of the optimiser.
        like: weights of the same names and shapes.
        xp: `numpy` or `jax.numpy`.
    """
    each = sum(math.prod(like[name].shape[1:]) for name in BLOCK)
    shapes = [(len(like["row"]), each), *(like[name].shape for name in _REST)]
    blocks, *rest = cut(row, shapes, xp)
    return {"blocks": blocks, **dict(zip(_REST, rest, strict=True))}


def unpacked(row: Float[np.ndarray, " n"], like: Weights) -> Weights:
    """Weights by name.

    Args:
        row: from `packed`.
        like: weights of the same names and shapes.
    """
    weights = opened(row, like, np)
    hidden = like["norm"].size
    shapes = [*of_look(hidden), *of_look(hidden), *of_mix(hidden)]
    parts = cut(weights.pop("blocks"), shapes, np)
    norms = np.stack([parts.pop(i) for i in (6, 5, 2)][::-1], axis=1)
    return {**dict(zip(BLOCK, (*parts, norms), strict=True)), **weights}
