"""One container, opened: the place and value of each child, and how to close it again.

The rules and the order are JAX's: a dict by sorted keys, an `OrderedDict` as it
stands, None is an empty container. A class registered with JAX opens the way it was
registered; one can only be registered where JAX is imported, so a program without JAX
misses nothing.
"""

import collections
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ._pytree import PyTree


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A container taken apart.

    Attributes:
        places: what to append to the container's name to name each child.
        children: the values, in JAX's order.
        close: makes the same kind of container from as many other children.
    """

    places: tuple[str, ...]
    children: tuple[PyTree, ...]
    close: Callable[[Sequence[PyTree]], PyTree]


def open_container(tree: PyTree) -> Opened | None:
    """Take one container apart, one level deep; None if `tree` is a leaf."""
    if tree is None:
        return Opened((), (), lambda _: None)
    if type(tree) in (dict, collections.OrderedDict, collections.defaultdict):
        return _open_mapping(tree)
    if type(tree) in (list, tuple):
        places = tuple(f"[{i}]" for i in range(len(tree)))
        return Opened(places, tuple(tree), type(tree))
    fields = getattr(tree, "_fields", None)
    if isinstance(tree, tuple) and fields is not None:  # a named tuple
        return Opened(
            tuple(f".{name}" for name in fields),
            tuple(tree),
            lambda children: type(tree)(*children),
        )
    if isinstance(tree, type):
        return None
    return _open_registered(tree) or _open_dataclass(tree)


def _open_mapping(tree: Any) -> Opened:
    ordered = type(tree) is collections.OrderedDict
    try:
        keys = list(tree) if ordered else sorted(tree)
    except TypeError as e:
        raise TypeError(
            f"the keys of a dict must sort, as JAX asks too; got {list(tree)!r}."
        ) from e

    def close(children: Sequence[PyTree]) -> PyTree:
        pairs = dict(zip(keys, children, strict=True))
        # In the order in which the dict was written, not sorted.
        fresh = {key: pairs[key] for key in tree}
        if type(tree) is collections.defaultdict:
            return collections.defaultdict(tree.default_factory, fresh)
        return type(tree)(fresh)

    return Opened(tuple(f".{k}" for k in keys), tuple(tree[k] for k in keys), close)


def _open_registered(tree: Any) -> Opened | None:
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    inside = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    found, structure = inside
    if len(found) == 1 and not found[0][0]:  # an empty path: the tree is its own leaf
        return None
    places = tuple("".join(map(_place, path)) for path, _ in found)
    children = tuple(child for _, child in found)
    return Opened(places, children, structure.unflatten)


def _place(key: Any) -> str:
    for attribute in ("name", "key"):
        if hasattr(key, attribute):
            part = getattr(key, attribute)
            return f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"[{key.idx}]" if hasattr(key, "idx") else f".{key}"


def _open_dataclass(tree: Any) -> Opened | None:
    if not dataclasses.is_dataclass(tree):
        return None
    names = [f.name for f in dataclasses.fields(tree) if f.init]
    return Opened(
        tuple(f".{name}" for name in names),
        tuple(getattr(tree, name) for name in names),
        lambda new: dataclasses.replace(tree, **dict(zip(names, new, strict=True))),  # pyright: ignore[reportArgumentType]
    )
