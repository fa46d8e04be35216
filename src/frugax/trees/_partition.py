"""Split a model into arrays and other leaves, and count the bytes of the arrays.

The idea, and the use of None for a leaf of the other half, are equinox's:
Kidger & Garcia 2021, "Equinox: neural networks in JAX via callable PyTrees".
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from ._containers import PyTree, flatten_container
from ._names import named_leaves


def is_array(leaf: object) -> bool:
    """Whether a leaf has a shape and a dtype, as arrays of any library have.

    Stand-ins such as `jax.ShapeDtypeStruct` count as arrays; classes do not.
    """
    # By attributes, so that JAX and torch need not be imported for the check.
    return (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type)
    )


def nbytes(tree: PyTree) -> int:
    """Bytes of all arrays in a tree; other leaves count as 0.

    Only shapes and dtypes are read, so `jax.ShapeDtypeStruct` works as well.

    >>> nbytes({"w": np.zeros((3, 4), np.float32), "act": max})
    48
    """
    # `nbytes` is missing in `jax.ShapeDtypeStruct`, and `size` is a method in torch;
    # shape and dtype are common to all.
    return sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize
        for _, leaf in named_leaves(tree)
        if is_array(leaf)
    )


def partition(
    tree: PyTree, *, select: Callable[[Any], bool] = is_array
) -> tuple[PyTree, PyTree]:
    """Split a tree into two of the same structure, with None for leaves of the other.

    Args:
        tree: the model: arrays among functions, flags and Python numbers.
        select: whether a leaf goes to the first tree; by default every array does.

    Returns:
        `(arrays, static)`; `combine(arrays, static)` is the tree again.

    >>> partition({"w": np.float32(2), "act": max})
    ({'w': np.float32(2.0), 'act': None}, {'w': None, 'act': <built-in function max>})
    """
    # None is an empty container to JAX, so neither half has leaves of the other.
    keep = lambda leaf: leaf if select(leaf) else None
    leave = lambda leaf: None if select(leaf) else leaf
    return _map_leaves(keep, tree), _map_leaves(leave, tree)


def replace_leaves(tree: PyTree, leaves: Iterable[object]) -> PyTree:
    """Build a tree of the same structure with other leaves.

    Args:
        tree: the tree; it is only read.
        leaves: as many as it has, in the order of `named_leaves`.

    Raises:
        ValueError: there are fewer leaves than the tree has.

    >>> replace_leaves({"a": [1, None], "b": 2}, [3, 4])
    {'a': [3, None], 'b': 4}
    """
    remaining = iter(leaves)

    def replace(_: object) -> object:
        # Not `next`: an iterator such as `map` takes its StopIteration for its own end.
        for leaf in remaining:
            return leaf
        raise ValueError("there are fewer leaves than the tree has.")

    return _map_leaves(replace, tree)


def combine(arrays: PyTree, static: PyTree) -> PyTree:
    """Join the two trees that `partition` returned.

    Args:
        arrays: the first tree, unchanged or with other arrays.
        static: the second tree.

    Raises:
        ValueError: the two trees do not have the same structure.
    """
    if static is None:
        return arrays
    if arrays is None:
        return static
    one, other = flatten_container(arrays), flatten_container(static)
    if one is None or other is None or one.places != other.places:
        raise ValueError(
            f"these are not two halves of one tree: one has a {type(arrays).__name__} "
            f"where the other has a {type(static).__name__}."
        )
    pairs = zip(one.children, other.children, strict=True)
    return one.rebuild([combine(a, s) for a, s in pairs])


def _map_leaves(function: Callable[[Any], object], tree: PyTree) -> PyTree:
    flat = flatten_container(tree)
    if flat is None:
        return function(tree)
    return flat.rebuild([_map_leaves(function, child) for child in flat.children])
