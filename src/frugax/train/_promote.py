"""Python values in a batch: what cannot be traced becomes part of the program."""

from typing import Any, NamedTuple

import jax

from frugax.typing import PyTree

from ._static import Frozen


class Split(NamedTuple):
    """A batch taken apart.

    Attributes:
        arrays: its leaves that are traced.
        static: the others, each with its place among the leaves, and the structure.
    """

    arrays: tuple[Any, ...]
    static: Frozen[tuple[Any, ...]]


def has_python_leaves(batch: PyTree) -> bool:
    """Whether a batch holds truth values, whole numbers or text of Python."""
    return any(type(x) in (bool, int, str) for x in jax.tree.leaves(batch))


def split(batch: PyTree) -> Split:
    """Take the Python values of a batch out."""
    leaves, structure = jax.tree.flatten(batch)
    fixed = {i: x for i, x in enumerate(leaves) if type(x) in (bool, int, str)}
    arrays = tuple(x for i, x in enumerate(leaves) if i not in fixed)
    return Split(arrays, Frozen((tuple(fixed.items()), structure)))


def join(arrays: tuple[Any, ...], static: Frozen[tuple[Any, ...]]) -> PyTree:
    """The batch that `split` took apart."""
    fixed, structure = static.value
    known = dict(fixed)
    rest = iter(arrays)
    count = structure.num_leaves
    leaves = [known[i] if i in known else next(rest) for i in range(count)]
    return jax.tree.unflatten(structure, leaves)
