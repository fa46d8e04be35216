"""Name every leaf of a pytree by its path, such as `layers[0].w`."""

from typing import Any

from ._containers import PyTree, flatten_container

# No model is nested this deeply, and a tree that contains itself has no end. Each level
# takes several frames of Python's stack, also when a file is read, so that its 1,000
# frames would soon be used up.
_MAX_LEVELS = 100


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Name every leaf of a tree, in the order of `jax.tree.leaves`.

    Containers are dicts, lists, tuples, named tuples, dataclasses, and classes that are
    registered with JAX, such as equinox and flax modules. None is an empty container.

    Args:
        tree: the tree; it is only read.

    Returns:
        Pairs of name and leaf. A tree that is a single leaf has the empty name.

    Raises:
        TypeError: the keys of a dict cannot be sorted.
        ValueError: two leaves share a name, because a key looks like a path; or the
            tree has over 100 levels, as a tree that contains itself has.

    >>> named_leaves({"w": 1, "layers": [{"b": 2}, None]})
    [('layers[0].b', 2), ('w', 1)]
    """
    found: list[tuple[str, Any]] = []
    _collect(tree, "", _MAX_LEVELS, found)
    seen: set[str] = set()
    for name, _ in found:
        if name in seen:
            raise ValueError(f"two leaves are named {name!r}: rename one of the keys.")
        seen.add(name)
    return found


def _collect(
    tree: PyTree, name: str, levels: int, found: list[tuple[str, Any]]
) -> None:
    flat = flatten_container(tree)
    if flat is None:
        found.append((name.removeprefix("."), tree))
        return
    if not levels:
        path = name.removeprefix(".")
        raise ValueError(
            f"the tree has over {_MAX_LEVELS} levels, at {path!r:.60}...: does it "
            "hold itself?"
        )
    for place, child in zip(flat.places, flat.children, strict=True):
        _collect(child, name + place, levels - 1, found)
