"""Check the fields of a layer by their annotations, where it is made.

Dataclasses check nothing: a text as a dimension would fail much later, inside of a
library. Layers that are read from a file are checked here too.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from frugax.options import check_choice

Check = Callable[[str, Any], None]


def check_fields(layer: Any) -> None:
    """Check each field that is not its default.

    Raises:
        TypeError: a field is of another type.
        ValueError: a field has another value.
    """
    for name, hint, default in _fields(type(layer)):
        value = getattr(layer, name)
        if value is default:
            continue
        place = f"{type(layer).__name__}.{name}"
        for check in _checks(hint):
            check(place, value)
        if not _matches(value, hint):
            wanted = hint.__name__ if isinstance(hint, type) else hint
            raise TypeError(f"{place} must be {wanted}, got {value!r:.60}.")


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, Any, Any], ...]:
    """The name, annotation and default of each field."""
    fields = dataclasses.fields(cls)
    hints: dict[str, Any] = {f.name: f.type for f in fields}
    # Of a class that is local the annotations may be text without a meaning here.
    with contextlib.suppress(NameError):
        hints |= typing.get_type_hints(cls, include_extras=True)
    return tuple((f.name, hints[f.name], f.default) for f in fields)


def _checks(hint: Any) -> Iterator[Check]:
    """The checks that an annotation asks for, beside that of the type."""
    if hint in (bool, "bool"):
        yield _check_flag
    elif typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if all(isinstance(choice, str) for choice in choices):
            yield functools.partial(check_choice, choices=choices)
    elif typing.get_origin(hint) is Annotated:
        yield from (check for check in hint.__metadata__ if callable(check))
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            for check in _checks(option):
                yield functools.partial(_check_if_given, check)


def _check_if_given(check: Check, name: str, value: Any) -> None:
    if value is not None:
        check(name, value)


def _check_flag(name: str, value: Any) -> None:
    # torch's Linear(4, 8) would otherwise be four outputs and a true bias.
    if not isinstance(value, bool):
        raise TypeError(
            f"{name} must be True or False, got {value!r:.60}; lengths of inputs are "
            "inferred and not given."
        )


def _matches(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; sequences are tuples here."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    # `int | None` and `Optional[int]` have different origins.
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, a) for a in arguments)
    if origin is Literal:
        # 1 == True in Python, but they are two values in JSON.
        return any(type(value) is type(a) and value == a for a in arguments)
    if origin is Annotated:
        return _matches(value, arguments[0])
    if (origin or hint) is tuple and arguments and arguments[-1] is not Ellipsis:
        return (
            isinstance(value, tuple)
            and len(value) == len(arguments)
            and all(map(_matches, value, arguments))
        )
    if (origin or hint) in (tuple, list, collections.abc.Sequence):
        each = next(iter(arguments), Any)
        return isinstance(value, tuple) and all(_matches(v, each) for v in value)
    # By exact type, because True is an int in Python.
    if hint in (bool, int, str):
        return type(value) is hint
    # JSON writers may drop the point of 1.0, so an int is a float here.
    if hint is float:
        return type(value) in (int, float)
    # Of other annotations, such as `Callable`, only layers and such are known.
    bases = hint.__mro__ if isinstance(hint, type) else ()
    is_known = any(base.__module__.startswith("frugax.models.") for base in bases)
    return not is_known or isinstance(value, hint)
