"""Describe the structure of a pytree as JSON data, so that a file can store it.

A leaf is `"*"`, None is `null`, and a container is an object with one key:
`{"dict": {name: ...}}`, `{"list": [...]}` or `{"tuple": [...]}`. There are no others,
because a file must not choose which class is built when it is read. A tree with any
other container becomes one dict from leaf names to leaves, `{"flat": [name, ...],
"from": class}`, which records the class.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ._containers import PyTree, flatten_container
from ._names import named_leaves


def describe(tree: PyTree) -> Any:
    """Describe the structure of a tree as JSON data.

    Returns:
        The structure. If the tree has a container that a file cannot store, it is
        `"flat"`, with the class of the first such container under `"from"`.

    Raises:
        TypeError: the keys of a dict cannot be sorted.
        ValueError: two leaves share a name, or the tree has over 100 levels.

    >>> describe({"a": [1, None], "b": (2,)})
    {'dict': {'a': {'list': ['*', None]}, 'b': {'tuple': ['*']}}}
    """
    names = [name for name, _ in named_leaves(tree)]
    try:
        return _describe(tree)
    except _OtherContainerError as e:
        return {"flat": names, "from": str(e)}


def rebuild(structure: Any, leaves: Iterable[object]) -> PyTree:
    """Build a tree from its description and its leaves.

    Args:
        structure: the result of `describe`, also after a round trip through JSON.
        leaves: the leaves, in the order of `named_leaves`.

    Raises:
        ValueError: `structure` is not a structure, or has another number of leaves.

    >>> rebuild({"dict": {"a": {"list": ["*", None]}}}, [7])
    {'a': [7, None]}
    """
    remaining = iter(leaves)
    match structure:
        case {"flat": list(names)}:
            tree = {str(name): _rebuild("*", remaining) for name in names}
        case _:
            tree = _rebuild(structure, remaining)
    surplus = len(list(remaining))
    if surplus:
        raise ValueError(f"the structure has {surplus} leaves fewer than were passed.")
    return tree


class _OtherContainerError(Exception):
    """A container that a file cannot store; names its class."""


def _describe(tree: PyTree) -> Any:
    flat = flatten_container(tree)
    if tree is None:
        return None
    if flat is None:
        return "*"
    inside = map(_describe, flat.children)
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": dict(zip(sorted(tree), inside, strict=True))}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: list(inside)}
    kind = type(tree)
    raise _OtherContainerError(f"{kind.__module__}.{kind.__qualname__}")


def _rebuild(structure: Any, leaves: Iterator[object]) -> PyTree:
    match structure:
        case None:
            return None
        case "*":
            # Not `next`: an iterator such as `map` takes its StopIteration for its own
            # end.
            for leaf in leaves:
                return leaf
            raise ValueError("the structure has more leaves than were passed.")
        case {"dict": dict(inside)}:
            return {key: _rebuild(inside[key], leaves) for key in sorted(inside)}
        case {"list": list(inside)}:
            return [_rebuild(child, leaves) for child in inside]
        case {"tuple": list(inside)}:
            return tuple([_rebuild(child, leaves) for child in inside])
        case _:
            raise ValueError(f"not the structure of a tree: {structure!r:.60}.")
