"""The structure of a tree as JSON data, so that a file can carry it.

A leaf is `"*"`, an empty place is `null`, a container is an object with one key:
`{"dict": {name: ...}}`, `{"list": [...]}` or `{"tuple": [...]}`. Nothing else is
carried: a file must not choose which class is built when it is read. A tree with any
other container becomes one dict from leaf names to leaves, `{"flat": [name, ...],
"from": class}`, and so says what it was.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ._names import named_leaves
from ._open import open_container
from ._pytree import PyTree


def describe(tree: PyTree) -> Any:
    """Say how a tree is built, as JSON data.

    Returns:
        The structure; `"flat"` with the first such class under `"from"` if the tree
        holds a container that a file cannot carry.

    Raises:
        TypeError: a dict whose keys do not sort.
        ValueError: two leaves share a name, or the tree has over 100 levels.

    >>> describe({"a": [1, None], "b": (2,)})
    {'dict': {'a': {'list': ['*', None]}, 'b': {'tuple': ['*']}}}
    """
    names = [name for name, _ in named_leaves(tree)]
    strange = _first_strange(tree)
    if strange is None:
        return _describe(tree)
    kind = type(strange)
    return {"flat": names, "from": f"{kind.__module__}.{kind.__qualname__}"}


def rebuild(structure: Any, leaves: Iterable[object]) -> PyTree:
    """Build the tree that `describe` described, with these leaves.

    Args:
        structure: what `describe` gave, as it was or through JSON.
        leaves: the leaves, in the order of `named_leaves`.

    Raises:
        ValueError: this is no structure, or it has another number of leaves.

    >>> rebuild({"dict": {"a": {"list": ["*", None]}}}, [7])
    {'a': [7, None]}
    """
    left = iter(leaves)
    match structure:
        case {"flat": list(names)}:
            tree = {str(name): _rebuild("*", left) for name in names}
        case _:
            tree = _rebuild(structure, left)
    surplus = len(list(left))
    if surplus:
        raise ValueError(f"the structure has {surplus} leaves fewer than were given.")
    return tree


def _first_strange(tree: PyTree) -> object | None:
    """The first container that is not a dict with text keys, a list or a tuple."""
    opened = open_container(tree)
    if opened is None or tree is None:
        return None
    if isinstance(tree, dict):
        if type(tree) is not dict or not all(isinstance(k, str) for k in tree):
            return tree
    elif type(tree) not in (list, tuple):
        return tree
    inside = map(_first_strange, opened.children)
    return next((found for found in inside if found is not None), None)


def _describe(tree: PyTree) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {"dict": {key: _describe(tree[key]) for key in sorted(tree)}}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [_describe(child) for child in tree]}
    return "*"


def _rebuild(structure: Any, leaves: Iterator[object]) -> PyTree:
    match structure:
        case None:
            return None
        case "*":
            for leaf in leaves:
                return leaf
            raise ValueError("the structure has more leaves than were given.")
        case {"dict": dict(inside)}:
            return {key: _rebuild(inside[key], leaves) for key in sorted(inside)}
        case {"list": list(inside)}:
            return [_rebuild(child, leaves) for child in inside]
        case {"tuple": list(inside)}:
            return tuple([_rebuild(child, leaves) for child in inside])
        case _:
            raise ValueError(f"this is no structure of a tree: {structure!r:.60}.")
