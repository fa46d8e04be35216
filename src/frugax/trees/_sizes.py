"""How many bytes the arrays of a tree hold."""

import math
from typing import Any

from ._names import named_leaves
from ._partition import is_array
from ._pytree import PyTree


def nbytes(tree: PyTree) -> int:
    """Bytes of all arrays in a tree; leaves that are no arrays count nothing.

    Works on stand-ins too (`jax.ShapeDtypeStruct`): only shapes and dtypes are read.

    >>> nbytes({"w": np.zeros((3, 4), np.float32), "act": max})
    48
    """
    return sum(_leaf_bytes(leaf) for _, leaf in named_leaves(tree) if is_array(leaf))


def _leaf_bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize
