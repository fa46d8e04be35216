"""Python values in a batch: what cannot be traced becomes part of the program."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
from jax.tree_util import keystr

from frugax.trees import PyTree

from ._static import Frozen


class Split(NamedTuple):
    """A batch taken apart.

    Attributes:
        arrays: the batch with None in place of its Python values.
        static: those by their place, such as `batch['k']`.
    """

    arrays: PyTree
    static: Frozen[dict[str, Any]]


def has_python_leaves(batch: PyTree) -> bool:
    """Whether a batch holds truth values, whole numbers or text of Python."""
    return any(type(x) in (bool, int, str) for x in jax.tree.leaves(batch))


def split(batch: PyTree) -> Split:
    """Take the Python values of a batch out."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(batch)
    is_value = [type(x) in (bool, int, str) for _, x in leaves]
    pairs = list(zip(leaves, is_value, strict=True))
    values = {f"batch{keystr(path)}": x for (path, x), value in pairs if value}
    arrays = [None if value else x for (_, x), value in pairs]
    return Split(jax.tree.unflatten(structure, arrays), Frozen(values))


def join(arrays: PyTree, static: Frozen[dict[str, Any]]) -> PyTree:
    """The batch that `split` took apart."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: static.value.get(f"batch{keystr(path)}", x),
        arrays,
        is_leaf=lambda x: x is None,
    )


def named(places: Iterable[str]) -> str:
    """Some places in a sentence: the first few, and how many more there are."""
    found = list(places)
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return " and ".join(found[:3]) + more
