"""A model split into its arrays and the rest, so that transformations see only arrays.

The idea, and the use of None for "not on this side", are equinox's:
Kidger & Garcia 2021, "Equinox: neural networks in JAX via callable PyTrees".
"""

from collections.abc import Callable
from typing import Any

from ._open import open_container
from ._pytree import PyTree


def is_array(leaf: object) -> bool:
    """Whether a leaf has a shape and a dtype: arrays of any library, and stand-ins."""
    return (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type)
    )


def partition(
    tree: PyTree, *, select: Callable[[Any], bool] = is_array
) -> tuple[PyTree, PyTree]:
    """Split a tree in two of the same structure, with None for what is in the other.

    Args:
        tree: the model: arrays among functions, flags and Python numbers.
        select: which leaves go to the first tree; by default every array.

    Returns:
        `(arrays, static)`; `combine(arrays, static)` is the tree again.

    >>> partition({"w": np.float32(2), "act": max})
    ({'w': np.float32(2.0), 'act': None}, {'w': None, 'act': <built-in function max>})
    """
    opened = open_container(tree)
    if opened is None:
        return (tree, None) if select(tree) else (None, tree)
    halves = [partition(child, select=select) for child in opened.children]
    return opened.close([a for a, _ in halves]), opened.close([s for _, s in halves])


def combine(arrays: PyTree, static: PyTree) -> PyTree:
    """Put the two trees that `partition` made together again.

    Args:
        arrays: the first tree, as it was or with other arrays in it.
        static: the second tree.

    Raises:
        ValueError: the two trees do not have the same structure.
    """
    if static is None:
        return arrays
    if arrays is None:
        return static
    one, other = open_container(arrays), open_container(static)
    if one is None or other is None or one.places != other.places:
        raise ValueError(
            f"these are not two halves of one tree: {type(arrays).__name__} stands "
            f"where the other has {type(static).__name__}."
        )
    pairs = zip(one.children, other.children, strict=True)
    return one.close([combine(a, s) for a, s in pairs])
