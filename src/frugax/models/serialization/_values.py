"""JSON values: check them, and turn layer settings and constants into them and back."""

import base64
import binascii
import collections.abc
import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Set
from typing import Any

import ml_dtypes
import numpy as np

from frugax.models.graph import Constant, Fill, Layer, Normal, Uniform

MAX_DEPTH = 32  # models in each other; Python's own stack bears a few hundred calls
MAX_NESTING = 128  # lists and objects in each other
MAX_VALUES = 5_000_000


def matches_type(value: Any, hint: Any) -> bool:
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
        return any(matches_type(value, a) for a in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(a) and value == a for a in arguments)
    if origin is typing.Annotated:
        return matches_type(value, arguments[0])
    if (origin or hint) is tuple and arguments and arguments[-1] is not Ellipsis:
        return (
            isinstance(value, tuple)
            and len(value) == len(arguments)
            and all(map(matches_type, value, arguments))
        )
    if (origin or hint) in (tuple, list, collections.abc.Sequence):
        each = arguments[0] if arguments else Any
        return isinstance(value, tuple) and all(matches_type(v, each) for v in value)
    if hint in (bool, int, str):
        return type(value) is hint
    if hint is float:
        return type(value) in (int, float)
    if isinstance(hint, type) and (
        issubclass(hint, Layer) or hint in (Fill, Normal, Uniform)
    ):
        return isinstance(value, hint)
    raise TypeError(f"the annotation {hint} is of a kind that cannot go to a file")


def check_type(value: Any, hint: Any, place: str) -> None:
    """See that a value is what an annotation says.

    Raises:
        TypeError: it is not, or no file can hold such a thing.
    """
    try:
        good = matches_type(value, hint)
    except TypeError as e:
        raise TypeError(f"{place}: {e}.") from None
    if not good:
        said = hint.__name__ if isinstance(hint, type) else str(hint)
        raise TypeError(f"{place}: must be {said}, got {value!r:.60}.")


def field_types(cls: type, place: str) -> Mapping[str, Any]:
    """The annotations of a layer's class.

    Raises:
        TypeError: they name what cannot be found.
    """
    try:
        return typing.get_type_hints(cls)
    except NameError as e:
        raise TypeError(
            f"{place_prefix(place)}the annotations of {cls.__name__} cannot be "
            f"read: {e}."
        ) from e


def require_fields(
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
        raise TypeError(f"{place_prefix(place)}an object is needed, got {data!r:.60}.")
    missing = sorted(needed - set(data))
    if missing:
        raise ValueError(f"{place_prefix(place)}{missing[0]!r} is missing.")
    unknown = sorted(map(str, set(data) - needed - optional))
    if unknown and not others:
        known = ", ".join(sorted(needed | optional))
        raise ValueError(
            f"{join_place(place, unknown[0])}: there is no such entry; there "
            f"are: {known}."
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


def join_place(place: str, name: str) -> str:
    """The place of an entry: `calls[3].layer` and `heads` make one."""
    return f"{place}.{name}" if place else name


def place_prefix(place: str) -> str:
    """The start of an error about a place."""
    return f"{place}: " if place else ""


INIT_CLASSES: dict[str, type] = {"Fill": Fill, "Normal": Normal, "Uniform": Uniform}

# Names and not `np.dtype(text)`, which also understands "O" and structures.
DTYPES: dict[str, np.dtype] = {
    d.name: d
    for d in map(
        np.dtype,
        (
            *(np.bool_, np.int8, np.int16, np.int32, np.int64),
            *(np.uint8, np.uint16, np.uint32, np.uint64),
            *(np.float16, np.float32, np.float64),
            *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
        ),
    )
}


def value_to_json(value: Any, place: str, layer: Callable[..., Any]) -> Any:
    """A setting as JSON; tuples become lists, and NaN and infinity a text.

    Args:
        value: a number, text, boolean, None, layer, start of a weight, or a sequence.
        place: what an error calls it.
        layer: `layer(value, place)` describes a layer.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, (tuple, list)):
        return [value_to_json(v, f"{place}[{i}]", layer) for i, v in enumerate(value)]
    if isinstance(value, Layer):
        return layer(value, place)
    if type(value) in INIT_CLASSES.values():
        numbers = {
            f.name: value_to_json(getattr(value, f.name), f"{place}.{f.name}", layer)
            for f in dataclasses.fields(value)
        }
        return {"init": type(value).__name__, **numbers}
    raise TypeError(
        f"{place}: only numbers, texts, booleans, None, layers and sequences of these "
        f"can go to a file, got {value!r:.60}."
    )


def value_from_json(data: Any, place: str, layer: Callable[..., Any]) -> Any:
    """A setting from JSON; lists become tuples.

    Args:
        data: what `value_to_json` gave.
        place: what an error calls it.
        layer: `layer(data, place)` reads a layer.

    Raises:
        ValueError: it is an object of no known form.
    """
    if isinstance(data, list):
        return tuple(
            value_from_json(d, f"{place}[{i}]", layer) for i, d in enumerate(data)
        )
    if not isinstance(data, dict):
        return data
    if "kind" in data:
        return layer(data, place)
    if set(data) == {"float"} and data["float"] in ("nan", "inf", "-inf"):
        return float(data["float"])
    start = (
        INIT_CLASSES.get(data["init"]) if isinstance(data.get("init"), str) else None
    )
    if start is not None:
        numbers = {
            k: value_from_json(v, f"{place}.{k}", layer)
            for k, v in data.items()
            if k != "init"
        }
        names = {f.name for f in dataclasses.fields(start)}
        if set(numbers) == names and all(
            matches_type(v, float) for v in numbers.values()
        ):
            return start(**numbers)
    raise ValueError(f"{place}: this is no value of a layer: {data!r:.80}.")


def constant_to_json(value: Any, place: str) -> dict[str, Any]:
    """A number or array written into a model, as JSON; arrays byte for byte.

    Raises:
        TypeError: its dtype cannot go to a file.
    """
    if not isinstance(value, np.ndarray):
        return {"value": value_to_json(value, place, reject_layer)}
    if value.dtype.name not in DTYPES:
        raise TypeError(f"{place}: arrays of {value.dtype} cannot go to a file.")
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return {
        "array": base64.b64encode(little.tobytes()).decode(),
        "dtype": value.dtype.name,
        "shape": list(value.shape),
    }


def constant_from_json(data: dict[str, Any], place: str) -> Constant:
    """The number or array that `constant_to_json` described.

    Raises:
        TypeError: it is neither a number nor an array.
        ValueError: it is damaged.
    """
    if set(data) == {"value"}:
        value = value_from_json(data["value"], place, reject_layer)
        if not matches_type(value, bool | int | float):
            raise TypeError(f"{place}.value: a number is needed, got {value!r:.60}.")
        return Constant(value)
    dtype = DTYPES.get(data["dtype"]) if isinstance(data.get("dtype"), str) else None
    shape = value_from_json(data.get("shape"), place, reject_layer)
    if (
        set(data) != {"array", "dtype", "shape"}
        or dtype is None
        or not matches_type(shape, tuple[int, ...])
        or not isinstance(data["array"], str)
    ):
        raise ValueError(f"{place}: this is no constant: {data!r:.80}.")
    try:
        content = base64.b64decode(data["array"], validate=True)
    except binascii.Error as e:
        raise ValueError(f"{place}.array: damaged base64: {e}.") from e
    if any(n < 0 for n in shape) or len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"{place}: {dtype.name}{list(shape)} does not have {len(content)} bytes."
        )
    return Constant(np.frombuffer(content, dtype.newbyteorder("<")).reshape(shape))


def reject_layer(value: Any, place: str) -> Any:
    """What reads or writes layers where there can be none.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"{place}: a plain value is needed, got {value!r:.60}.")
