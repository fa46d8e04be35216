"""Pack the weights of the surrogate's network into one vector, for faster training.

The optimiser's update, and the loop over blocks, then compile to one kernel each
instead of one for each array.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

# NumPy or JAX arrays by name; those of all blocks are stacked.
Weights = dict[str, Any]

BLOCK = (
    "row", "row_out", "column", "column_out", "mix", "mix_bias", "mix_out", "norms",
)  # fmt: skip
_REST = ("embed", "embed_bias", "norm", "edge", "trust", "trust_bias")


def look_shapes(hidden: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the weights of one attention layer: qkv, output, gain."""
    return (hidden, 3 * hidden), (hidden, hidden), (hidden,)


def mix_shapes(hidden: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the weights of a block's MLP: gain, input, bias, output."""
    wide = 2 * hidden
    return (hidden,), (wide, wide), (wide,), (wide, hidden)


def split_row(row: Any, shapes: Sequence[tuple[int, ...]], xp: Any) -> list[Any]:
    """Split the last axis of a row [..., n] into arrays of these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = xp.split(row, ends[:-1].tolist(), axis=-1)
    return [p.reshape(*p.shape[:-1], *s) for p, s in zip(parts, shapes, strict=True)]


def pack_weights(weights: Weights) -> Float[np.ndarray, " n"]:
    """Concatenate all weights to one vector, block after block."""
    # This order must be that of `look_shapes` twice, then `mix_shapes`: `split_row`
    # cuts by size alone and cannot notice a mistake.
    in_blocks = []
    for index in range(len(weights["row"])):
        w = {name: weights[name][index] for name in BLOCK}
        in_blocks += [w["row"], w["row_out"], w["norms"][0]]
        in_blocks += [w["column"], w["column_out"], w["norms"][1]]
        in_blocks += [w["norms"][2], w["mix"], w["mix_bias"], w["mix_out"]]
    rest = [weights[name] for name in _REST]
    return np.concatenate([np.ravel(w) for w in (*in_blocks, *rest)])


def unpack_lazily(row: Any, like: Weights, xp: Any) -> Weights:
    """Unpack a vector, leaving the weights of each block in a row of `"blocks"`."""
    each = sum(math.prod(like[name].shape[1:]) for name in BLOCK)
    shapes = [(len(like["row"]), each), *(like[name].shape for name in _REST)]
    blocks, *rest = split_row(row, shapes, xp)
    return {"blocks": blocks, **dict(zip(_REST, rest, strict=True))}


def unpack_weights(row: Float[np.ndarray, " n"], like: Weights) -> Weights:
    """Unpack a vector to weights by name, with the shapes of those in `like`."""
    weights = unpack_lazily(row, like, np)
    hidden = like["norm"].size
    shapes = [*look_shapes(hidden), *look_shapes(hidden), *mix_shapes(hidden)]
    parts = split_row(weights.pop("blocks"), shapes, np)
    # The gains are at 2, 5 and 6; popped from the end, none moves before its turn.
    norms = np.stack([parts.pop(i) for i in (6, 5, 2)][::-1], axis=1)
    return {**dict(zip(BLOCK, (*parts, norms), strict=True)), **weights}
