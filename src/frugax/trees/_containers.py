"""Flatten one container of a pytree by one level: the path and value of each child.

The rules and the order are JAX's: a dict by sorted keys, an `OrderedDict` in its own
order, None as an empty container. A class that is registered with JAX is flattened as
registered; that takes an import of JAX, so a program without JAX misses nothing.
"""

import collections
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

# Any tree of containers and leaves. Not jaxtyping's alias, because that imports JAX,
# which `compress` and `tropical` must work without.
PyTree: TypeAlias = Any


@dataclasses.dataclass(frozen=True, slots=True)
class FlatContainer:
    """The children of a container.

    Attributes:
        places: the suffixes that turn the container's name into each child's name.
        children: the values, in JAX's order.
        rebuild: makes the same kind of container from as many other children.
    """

    places: tuple[str, ...]
    children: tuple[PyTree, ...]
    rebuild: Callable[[Sequence[PyTree]], PyTree]


def flatten_container(tree: PyTree) -> FlatContainer | None:
    """Flatten one container by one level; None if `tree` is a leaf."""
    if tree is None:
        return FlatContainer((), (), lambda _: None)
    # Exact types, as in JAX: a subclass of dict is a leaf unless it is registered.
    if type(tree) in (dict, collections.OrderedDict, collections.defaultdict):
        return _flatten_mapping(tree)
    if type(tree) in (list, tuple):
        places = tuple(f"[{i}]" for i in range(len(tree)))
        return FlatContainer(places, tuple(tree), type(tree))
    fields = getattr(tree, "_fields", None)
    if isinstance(tree, tuple) and fields is not None:  # a named tuple
        return FlatContainer(
            tuple(f".{name}" for name in fields),
            tuple(tree),
            lambda children: type(tree)(*children),
        )
    # A class is a leaf, even if its instances are containers.
    if isinstance(tree, type):
        return None
    return _flatten_registered(tree) or _flatten_dataclass(tree)


def _flatten_mapping(tree: Any) -> FlatContainer:
    ordered = type(tree) is collections.OrderedDict
    try:
        keys = list(tree) if ordered else sorted(tree)
    except TypeError as e:
        raise TypeError(
            f"the keys of a dict must be sortable, as JAX requires; got {list(tree)!r}."
        ) from e

    def rebuild(children: Sequence[PyTree]) -> PyTree:
        pairs = dict(zip(keys, children, strict=True))
        # In the dict's own order: a rebuilt dict must print and iterate as before.
        fresh = {key: pairs[key] for key in tree}
        if type(tree) is collections.defaultdict:
            return collections.defaultdict(tree.default_factory, fresh)
        return type(tree)(fresh)

    return FlatContainer(
        tuple(f".{k}" for k in keys), tuple(tree[k] for k in keys), rebuild
    )


def _flatten_registered(tree: Any) -> FlatContainer | None:
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    # Every child counts as a leaf, so that JAX stops after one level.
    is_child = lambda x: x is not tree
    found, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_child)
    if len(found) == 1 and not found[0][0]:  # an empty path: the tree is a leaf
        return None
    places = tuple("".join(map(_place, path)) for path, _ in found)
    children = tuple(child for _, child in found)
    return FlatContainer(places, children, structure.unflatten)


def _place(key: Any) -> str:
    # JAX's keys: attributes have a `name`, dicts and registered classes a `key`,
    # sequences an `idx`.
    for attribute in ("name", "key"):
        if hasattr(key, attribute):
            part = getattr(key, attribute)
            return f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"[{key.idx}]" if hasattr(key, "idx") else f".{key}"


def _flatten_dataclass(tree: Any) -> FlatContainer | None:
    if not dataclasses.is_dataclass(tree):
        return None
    # `replace` takes only the fields that `__init__` takes.
    names = [f.name for f in dataclasses.fields(tree) if f.init]
    return FlatContainer(
        tuple(f".{name}" for name in names),
        tuple(getattr(tree, name) for name in names),
        lambda new: dataclasses.replace(tree, **dict(zip(names, new, strict=True))),
    )
