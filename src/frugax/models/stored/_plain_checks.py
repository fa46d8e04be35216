"""What plain data must look like: entries, types by annotation, size."""

import collections.abc
import types
import typing
from collections.abc import Mapping, Set
from typing import Any

from frugax.models.graph import Fill, Layer, Normal, Uniform

MAX_DEPTH = 32  # models in each other; Python's own stack bears a few hundred calls
MAX_NESTING = 128  # lists and objects in each other
MAX_VALUES = 5_000_000


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says; sequences are tuples here.

    Raises:
        TypeError: the annotation is of a kind that no file can hold.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(a) and value == a for a in arguments)
    if origin is typing.Annotated:
        return fits(value, arguments[0])
    if (origin or hint) is tuple and arguments and arguments[-1] is not Ellipsis:
        return (
            isinstance(value, tuple)
            and len(value) == len(arguments)
            and all(map(fits, value, arguments))
        )
    if (origin or hint) in (tuple, list, collections.abc.Sequence):
        each = arguments[0] if arguments else Any
        return isinstance(value, tuple) and all(fits(v, each) for v in value)
    if hint in (bool, int, str):
        return type(value) is hint
    if hint is float:
        return type(value) in (int, float)
    if isinstance(hint, type) and (
        issubclass(hint, Layer) or hint in (Fill, Normal, Uniform)
    ):
        return isinstance(value, hint)
    raise TypeError(f"the annotation {hint} is of a kind that cannot go to a file")


def check_fits(value: Any, hint: Any, place: str) -> None:
    """See that a value is what an annotation says.

    Raises:
        TypeError: it is not, or no file can hold such a thing.
    """
    try:
        good = fits(value, hint)
    except TypeError as e:
        raise TypeError(f"{place}: {e}.") from None
    if not good:
        said = hint.__name__ if isinstance(hint, type) else str(hint)
        raise TypeError(f"{place}: must be {said}, got {value!r:.60}.")


def hints_of(cls: type, place: str) -> Mapping[str, Any]:
    """The annotations of a layer's class.

    Raises:
        TypeError: they name what cannot be found.
    """
    try:
        return typing.get_type_hints(cls)
    except NameError as e:
        raise TypeError(
            f"{prefix(place)}the annotations of {cls.__name__} cannot be read: {e}."
        ) from e


def fields_of(
    data: Any,
    place: str,
    needed: Set[str],
    *,
    optional: Set[str] = frozenset(),
    others: bool = False,
) -> dict[str, Any]:
    """`data` as an object that has these entries.

    Args:
        data: what was read.
        place: what an error calls it.
        needed: entries that must be there.
        optional: entries that may be.
        others: whether any other may be too.

    Raises:
        TypeError: it is no object.
        ValueError: an entry is missing or unknown.
    """
    if not isinstance(data, dict):
        raise TypeError(f"{prefix(place)}an object is needed, got {data!r:.60}.")
    missing = sorted(needed - set(data))
    if missing:
        raise ValueError(f"{prefix(place)}{missing[0]!r} is missing.")
    unknown = sorted(map(str, set(data) - needed - optional))
    if unknown and not others:
        known = ", ".join(sorted(needed | optional))
        raise ValueError(
            f"{entry(place, unknown[0])}: there is no such entry; there are: {known}."
        )
    return data


def check_size(data: Any) -> None:
    """See that plain data are neither too many nor nested too deep to walk.

    Raises:
        ValueError: they are.
    """
    waiting, count = [(data, 0)], 0
    while waiting:  # no recursion: this is what keeps the others from going too deep
        each, depth = waiting.pop()
        count += 1
        if depth > MAX_NESTING:
            raise ValueError(f"the model is nested more than {MAX_NESTING} deep.")
        if count > MAX_VALUES:
            raise ValueError(f"the model has more than {MAX_VALUES:,} entries.")
        inner = each.values() if isinstance(each, dict) else each
        if isinstance(each, (dict, list)):
            waiting += [(v, depth + 1) for v in inner]


def entry(place: str, name: str) -> str:
    """The place of an entry: `calls[3].layer` and `heads` make one."""
    return f"{place}.{name}" if place else name


def prefix(place: str) -> str:
    """The start of an error about a place."""
    return f"{place}: " if place else ""
