"""Count the bytes of the arrays in a pytree."""

import math
from typing import Any

from ._names import named_leaves
from ._partition import is_array
from ._pytree import PyTree


def nbytes(tree: PyTree) -> int:
    """Bytes of all arrays in a tree; other leaves count as 0.

    Only shapes and dtypes are read, so `jax.ShapeDtypeStruct` works as well.

    >>> nbytes({"w": np.zeros((3, 4), np.float32), "act": max})
    48
    """
    return sum(_leaf_bytes(leaf) for _, leaf in named_leaves(tree) if is_array(leaf))


def _leaf_bytes(leaf: Any) -> int:
    # `nbytes` is missing in `jax.ShapeDtypeStruct`, and `size` is a method in torch;
    # shape and dtype are common to all.
    return math.prod(leaf.shape) * leaf.dtype.itemsize
