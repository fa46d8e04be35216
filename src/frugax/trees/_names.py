"""Every leaf by its name, as a person would write the way to it."""

from typing import Any

from ._open import open_container
from ._pytree import PyTree

# No model is nested as deep, and a tree that holds itself has no end. Each level takes
# several frames of Python's stack, in a reader of files too, so 1,000 are soon used up.
_MOST_LEVELS = 100


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Name every leaf of a tree, in the order of `jax.tree.leaves`.

    Containers are dicts, lists, tuples, named tuples, dataclasses, and whatever is
    registered with JAX (equinox and flax modules are). None is an empty container.

    Args:
        tree: the tree; it is only read.

    Returns:
        Pairs of name and leaf. A tree that is one leaf has the empty name.

    Raises:
        TypeError: a dict whose keys do not sort.
        ValueError: two leaves share a name: a key holds what looks like a path; or the
            tree has over 100 levels, as one that holds itself has.

    >>> named_leaves({"w": 1, "layers": [{"b": 2}, None]})
    [('layers[0].b', 2), ('w', 1)]
    """
    found: list[tuple[str, Any]] = []
    _collect(tree, "", _MOST_LEVELS, found)
    seen: set[str] = set()
    for name, _ in found:
        if name in seen:
            raise ValueError(f"two leaves are named {name!r}: rename one of the keys.")
        seen.add(name)
    return found


def _collect(
    tree: PyTree, name: str, levels: int, found: list[tuple[str, Any]]
) -> None:
    opened = open_container(tree)
    if opened is None:
        found.append((name.removeprefix("."), tree))
        return
    if not levels:
        way = name.removeprefix(".")
        raise ValueError(
            f"the tree has over {_MOST_LEVELS} levels, at {way!r:.60}...: does it hold "
            "itself?"
        )
    for place, child in zip(opened.places, opened.children, strict=True):
        _collect(child, name + place, levels - 1, found)
