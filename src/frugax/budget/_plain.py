"""Frozen dataclasses to plain JSON data and back; errors say where the data is wrong.

Plans, reports and config files all go through here, so a wrong value is always named
with its place (`train.steps`), what was expected there, and what stands there.
Only data comes back: no class is chosen by the file, no code runs.
"""

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, cast

T = TypeVar("T")


class WrongValueError(ValueError):
    """A value that does not fit its place.

    Attributes:
        at: the place in the data, as a dotted path; empty at the top.
    """

    def __init__(self, at: str, what: str) -> None:
        super().__init__(f"{at}: {what}" if at else what)
        self.at = at


def to_plain(value: object) -> Any:
    """Turn a dataclass, and everything in it, into what JSON can hold.

    Args:
        value: frozen dataclasses, tuples, lists, mappings with text keys, numbers,
            text, booleans and None, nested at will.

    Raises:
        TypeError: something else is in it.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in cast("list[object]", value)]
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value)
        return {str(k): to_plain(v) for k, v in pairs.items()}
    raise TypeError(f"cannot write a {type(value).__name__} as JSON: {value!r}.")


def from_plain(cls: type[T], data: object, *, at: str = "") -> T:
    """Build `cls` from plain data, checking every value against its annotation.

    Args:
        cls: a dataclass, or any type its fields may have: numbers, text, `Literal`,
            optional values, tuples, lists, mappings, other dataclasses.
        data: what `to_plain`, JSON or YAML gave. Text is accepted where a budget
            stands (`"2GiB"`), and a whole number where a float stands.
        at: the place of `data` in its file, for the error message.

    Raises:
        WrongValueError: a value of the wrong kind or out of range, an unknown or a
            missing key. A `ValueError` whose message starts with the key's place.
    """
    return cast("T", _read(cls, data, at))


def _read(kind: Any, data: Any, at: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return data
    if origin is Literal:
        if data in args:
            return data
        wanted = " or ".join(repr(a) for a in args)
        close = difflib.get_close_matches(str(data), map(str, args), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise _wrong(at, wanted, data, hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, data, at)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(cast("type[Any]", kind), data, at)
    if origin is tuple and isinstance(data, list | tuple):
        return _read_tuple(args, list(cast("list[Any]", data)), at)
    if origin is list and isinstance(data, list):
        items = cast("list[Any]", data)
        return [_read(args[0], v, f"{at}[{i}]") for i, v in enumerate(items)]
    if (
        isinstance(origin, type)
        and issubclass(origin, Mapping)
        and isinstance(data, dict)
    ):
        pairs = cast("dict[Any, Any]", data)
        return {str(k): _read(args[1], v, _join(at, str(k))) for k, v in pairs.items()}
    if kind is float and type(data) is int:
        return float(data)
    if isinstance(kind, type) and type(data) is kind:
        return data
    raise _wrong(at, _name(kind), data, _share_hint(kind, data))


def _share_hint(kind: Any, data: Any) -> str:
    """What to write in place of `1%` where a number is wanted."""
    number = str(data).strip().removesuffix("%")
    if kind is not float or number == str(data).strip():
        return ""
    try:
        return f" Write {float(number) / 100:g} for {data}."
    except ValueError:
        return ""


def _read_union(args: tuple[Any, ...], data: Any, at: str) -> Any:
    if data is None and type(None) in args:
        return None
    options = [a for a in args if a is not type(None)]
    # An exact scalar type wins; otherwise the first option that can read the data.
    for option in options:
        if isinstance(option, type) and type(data) is option:
            return data
    errors: list[WrongValueError] = []
    for option in options:
        try:
            return _read(option, data, at)
        except WrongValueError as e:
            errors.append(e)
    if len(errors) == 1:
        raise errors[0]
    # With a mapping in hand the reader meant the option that is a dataclass.
    if isinstance(data, dict):
        for option, error in zip(options, errors, strict=True):
            if dataclasses.is_dataclass(option):
                raise error
    wrong = cast("object", data)
    raise _wrong(at, " or ".join(_name(o) for o in options), wrong)


def _read_dataclass(cls: type[Any], data: Any, at: str) -> Any:
    names = [f.name for f in dataclasses.fields(cls)]
    if isinstance(data, str) and _reads_text(cls):
        return _build(cls, at, data)
    if not isinstance(data, dict):
        keys = ", ".join(names)
        wrong = cast("object", data)
        text = "text with a unit, or " if _reads_text(cls) else ""
        raise _wrong(at, f"{text}a mapping with the keys {keys}", wrong)
    given = cast("dict[Any, Any]", data)
    for key in given:
        if key not in names:
            close = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            raise WrongValueError(
                _join(at, str(key)),
                f"there is no such key. {hint}Valid keys here: {', '.join(names)}.",
            )
    hints = _hints(cls)
    values = {k: _read(hints[k], v, _join(at, k)) for k, v in given.items()}
    return _build(cls, at, **values)


def _build(cls: type[Any], at: str, *args: Any, **values: Any) -> Any:
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.init
        and not args
        and f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
        and not _reads_text(cls)  # these check for themselves which limits are given
    ]
    if missing:
        raise WrongValueError(_join(at, missing[0]), "this key is missing.")
    try:
        return cls(*args, **values)
    except (TypeError, ValueError) as e:
        # "steps must be >= 1" is about a field: name its whole path instead.
        name, _, rest = str(e).partition(" ")
        if name in {f.name for f in dataclasses.fields(cls)}:
            raise WrongValueError(_join(at, name), rest) from e
        raise WrongValueError(at, str(e)) from e


def _read_tuple(args: tuple[Any, ...], data: list[Any], at: str) -> tuple[Any, ...]:
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_read(args[0], v, f"{at}[{i}]") for i, v in enumerate(data))
    if len(args) != len(data):
        raise _wrong(at, f"a list of {len(args)} values", data)
    pairs = zip(args, data, strict=True)
    return tuple(_read(a, v, f"{at}[{i}]") for i, (a, v) in enumerate(pairs))


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    # A constructor of its own may take more than the field holds: "3min" for seconds.
    return typing.get_type_hints(cls.__init__ if _reads_text(cls) else cls)


def _reads_text(cls: type[Any]) -> bool:
    """Whether the dataclass has a constructor of its own: the budgets have."""
    return not cls.__dataclass_params__.init


def _wrong(at: str, wanted: str, data: object, hint: str = "") -> WrongValueError:
    shown = repr(data) if len(repr(data)) <= 60 else repr(data)[:57] + "..."
    return WrongValueError(at, f"expected {wanted}, got {shown}.{hint}")


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _name(kind: Any) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
    }
    if kind in names:
        return names[kind]
    if typing.get_origin(kind) in (tuple, list):
        return "a list"
    return getattr(kind, "__name__", str(kind))
