"""Convert dataclasses to plain JSON data and back; errors name the wrong value's place.

Plans, reports and configs all go through here. Only data is read: the file chooses no
class, and no code runs.
"""

import contextlib
import dataclasses
import difflib
import functools
import json
import math
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

T = TypeVar("T")


class WrongValueError(ValueError):
    """A value of the wrong kind, or out of range.

    Attributes:
        at: the place in the data, as a dotted path; empty at the top.
    """

    def __init__(self, at: str, what: str) -> None:
        if at:
            what = f"{at}: {what}"
        super().__init__(what)
        self.at = at


def to_plain(value: object) -> Any:
    """Convert a dataclass, and everything in it, into values that JSON can hold.

    Args:
        value: frozen dataclasses, tuples, lists, mappings with text keys, numbers,
            text, booleans and None, nested at will.

    Raises:
        TypeError: `value` contains anything else.
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


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Write plain data as strict JSON (RFC 8259).

    Strict JSON has no NaN and no infinity, and readers in other languages refuse the
    whole text, so a number that is not finite becomes null.

    Args:
        value: output of `to_plain`, or other data that JSON can hold.
        indent: as for `json.dumps`; None for a text without blanks.

    Raises:
        TypeError: `value` contains something without a JSON form.

    Example:
        >>> to_json({"loss": float("nan"), "steps": 3})
        '{"loss":null,"steps":3}'
    """
    separators = (",", ":") if indent is None else None
    options: dict[str, Any] = {"indent": indent, "separators": separators}
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:  # rare, so only then is the whole value copied
        return json.dumps(_null_nonfinite(value), allow_nan=False, **options)


def _null_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        return {key: _null_nonfinite(inner) for key, inner in pairs.items()}
    if isinstance(value, list | tuple):
        return [_null_nonfinite(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_plain(
    cls: type[T], data: object, *, at: str = "", null_is_nan: bool = False
) -> T:
    """Build `cls` from plain data, checking every value against its annotation.

    Args:
        cls: a dataclass, or any type its fields may have: numbers, text, `Literal`,
            optional values, tuples, lists, mappings, other dataclasses.
        data: output of `to_plain`, or parsed JSON or YAML. Text is accepted in place
            of a budget (`"2GiB"`), and a whole number in place of a float.
        at: the place of `data` in its file, for the error message.
        null_is_nan: read None as NaN where a number is required, since `to_json` wrote
            a number that is not finite as null.

    Raises:
        WrongValueError: a value of the wrong kind or out of range, an unknown key or
            a missing one. A `ValueError` whose message starts with the key's place.
    """
    return cast("T", _read(cls, data, at, math.nan if null_is_nan else None))


def _read(kind: Any, data: Any, at: str, null: float | None) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return data
    if origin is Literal:
        if data in args:
            return data
        expected = " or ".join(repr(a) for a in args)
        raise _wrong(at, expected, data, suggest(data, map(str, args)))
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, data, at, null)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(cast("type[Any]", kind), data, at, null)
    if origin is tuple and isinstance(data, list | tuple):
        return _read_tuple(args, list(cast("list[Any]", data)), at, null)
    if origin is list and isinstance(data, list):
        items = cast("list[Any]", data)
        return [_read(args[0], v, f"{at}[{i}]", null) for i, v in enumerate(items)]
    if (
        isinstance(origin, type)
        and issubclass(origin, Mapping)
        and isinstance(data, dict)
    ):
        pairs = cast("dict[Any, Any]", data)
        return {
            str(k): _read(args[1], v, _join(at, str(k)), null) for k, v in pairs.items()
        }
    if kind is float and data is None and null is not None:
        return null
    # YAML reads `rate: 1` as a whole number. The reverse, 1.5 steps, is a mistake.
    if kind is float and type(data) is int and abs(data) <= sys.float_info.max:
        return float(data)
    # The exact type, as Python counts True among the integers: `steps: true` would
    # train for one step.
    if isinstance(kind, type) and type(data) is kind:
        return data
    raise _wrong(at, _name(kind), data, _number_hint(kind, data))


def _number_hint(kind: Any, data: Any) -> str:
    """Suggest the number to write in place of `1%`, or of a number in quotes."""
    text = data.strip() if isinstance(data, str) else ""
    try:
        if kind is float and text.endswith("%"):
            return f" Write {float(text[:-1]) / 100:g} for {data}."
        if kind in (int, float):
            kind(text)
            return " Write it without quotes."
    except ValueError:
        pass
    return ""


def _read_union(args: tuple[Any, ...], data: Any, at: str, null: float | None) -> Any:
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
            return _read(option, data, at, null)
        except WrongValueError as e:
            errors.append(e)
    # The only option's error names the place inside of it; a list of types would hide
    # it.
    if len(errors) == 1:
        raise errors[0]
    # A list or a mapping in the file means the options of that kind; of several, the
    # one that has the keys. If there is one such option, its error is the right one.
    meant = [i for i, option in enumerate(options) if _has_kind(option, data)]
    if len(meant) > 1 and isinstance(data, dict):
        keys = {*cast("dict[Any, Any]", data)}
        meant = [i for i in meant if keys <= set(_field_names(options[i]))]
    if len(meant) == 1:
        if hint := _find_key_of_list(options, data, at, null):
            shape = _describe_shape(options[meant[0]])
            raise _wrong(at, shape, cast("object", data), hint)
        raise errors[meant[0]]
    shapes = [_describe_shape(option) for option in options]
    expected = f"one of {', '.join(shapes[:-1])} or {shapes[-1]}"
    raise _wrong(at, expected, cast("object", data))


def _find_key_of_list(
    options: list[Any], data: Any, at: str, null: float | None
) -> str:
    """Suggest the mapping with one key that can hold a list."""
    for option in options:
        if isinstance(data, list) and dataclasses.is_dataclass(option):
            key, *more = _field_names(cast("type[Any]", option))
            with contextlib.suppress(WrongValueError):
                _read(option, {key: data}, at, null)
                if not more:
                    return f" Write {{{key}: {data}}}."
    return ""


def _has_kind(option: Any, data: Any) -> bool:
    if isinstance(data, str):
        return dataclasses.is_dataclass(option) and _reads_text(
            cast("type[Any]", option)
        )
    if isinstance(data, dict):
        return dataclasses.is_dataclass(option)
    return isinstance(data, list) and typing.get_origin(option) in (tuple, list)


def _field_names(cls: type[Any]) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def _describe_shape(option: Any) -> str:
    """Describe an option as it is written in a file."""
    if dataclasses.is_dataclass(option):
        keys = ", ".join(
            f"{name}: ..." for name in _field_names(cast("type[Any]", option))
        )
        return f"{{{keys}}}"
    args = typing.get_args(option)
    if typing.get_origin(option) is tuple and Ellipsis not in args:
        return f"a list of {len(args)} values"
    return _name(option)


def _read_dataclass(cls: type[Any], data: Any, at: str, null: float | None) -> Any:
    names = _field_names(cls)
    if isinstance(data, str) and _reads_text(cls):
        return _build(cls, at, data)
    if not isinstance(data, dict):
        expected = f"a mapping with the keys {', '.join(names)}"
        if _reads_text(cls):
            expected = f"text with a unit, or {expected}"
        raise _wrong(at, expected, cast("object", data))
    pairs = cast("dict[Any, Any]", data)
    for key in pairs:
        # Ignoring the key would leave a misspelt budget without any limit.
        if key not in names:
            raise WrongValueError(
                _join(at, str(key)),
                f"unknown key.{suggest(key, names)} Valid keys here: "
                f"{', '.join(names)}.",
            )
    hints = _hints(cls)
    values = {k: _read(hints[k], v, _join(at, k), null) for k, v in pairs.items()}
    return _build(cls, at, **values)


def _build(cls: type[Any], at: str, /, *args: Any, **values: Any) -> Any:
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.init
        and not args
        and f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
        and not _reads_text(cls)  # budgets check by themselves which limits they have
    ]
    if missing:
        raise WrongValueError(_join(at, missing[0]), "this key is missing.")
    try:
        return cls(*args, **values)
    except (TypeError, ValueError) as e:
        # "steps must be >= 1" is about a field: replace its name by its whole path.
        name, _, rest = str(e).partition(" ")
        if name in {f.name for f in dataclasses.fields(cls)}:
            raise WrongValueError(_join(at, name), rest) from e
        raise WrongValueError(at, str(e)) from e


def _read_tuple(
    args: tuple[Any, ...], data: list[Any], at: str, null: float | None
) -> tuple[Any, ...]:
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_read(args[0], v, f"{at}[{i}]", null) for i, v in enumerate(data))
    if len(args) != len(data):
        raise _wrong(at, f"a list of {len(args)} values", data)
    pairs = zip(args, data, strict=True)
    return tuple(_read(a, v, f"{at}[{i}]", null) for i, (a, v) in enumerate(pairs))


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    # A hand-written constructor may accept more than the field holds: "3min" for
    # seconds. So its annotations count, not the fields'.
    source: Any = cls
    if _reads_text(cls):
        source = cls.__init__
    return typing.get_type_hints(source)


def _reads_text(cls: type[Any]) -> bool:
    """Whether the dataclass has a hand-written constructor, as the budgets have."""
    return not cls.__dataclass_params__.init


def suggest(wrong: object, known: Iterable[str]) -> str:
    """Suggest the nearest of the known names.

    >>> suggest("stpes", ["steps", "seed"]), suggest("xyz", ["steps"])
    (" Did you mean 'steps'?", '')
    """
    # 0.5 is below difflib's 0.6: keys are short, so one slip weighs more in them.
    close = difflib.get_close_matches(str(wrong), list(known), n=1, cutoff=0.5)
    return "".join(f" Did you mean {name!r}?" for name in close)


def _wrong(at: str, expected: str, data: object, hint: str = "") -> WrongValueError:
    # A table that was pasted under the wrong key must not fill the terminal.
    shown = textwrap.shorten(repr(data), 60, placeholder="...")
    return WrongValueError(at, f"expected {expected}, got {shown}.{hint}")


def _join(at: str, key: str) -> str:
    return f"{at}.{key}".removeprefix(".")


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
    if typing.get_origin(kind) is dict:
        return "a mapping"
    return getattr(kind, "__name__", str(kind))
