"""Settings of layers and constants of models as JSON values, and back."""

import base64
import binascii
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from frugax.models.graph import Constant, Fill, Layer, Normal, Uniform

from ._plain_checks import fits

STARTS: dict[str, type] = {"Fill": Fill, "Normal": Normal, "Uniform": Uniform}

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


def describe_value(value: Any, place: str, layer: Callable[..., Any]) -> Any:
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
        return [describe_value(v, f"{place}[{i}]", layer) for i, v in enumerate(value)]
    if isinstance(value, Layer):
        return layer(value, place)
    if type(value) in STARTS.values():
        numbers = {
            f.name: describe_value(getattr(value, f.name), f"{place}.{f.name}", layer)
            for f in dataclasses.fields(value)
        }
        return {"init": type(value).__name__, **numbers}
    raise TypeError(
        f"{place}: only numbers, texts, booleans, None, layers and sequences of these "
        f"can go to a file, got {value!r:.60}."
    )


def read_value(data: Any, place: str, layer: Callable[..., Any]) -> Any:
    """A setting from JSON; lists become tuples.

    Args:
        data: what `describe_value` gave.
        place: what an error calls it.
        layer: `layer(data, place)` reads a layer.

    Raises:
        ValueError: it is an object of no known form.
    """
    if isinstance(data, list):
        return tuple(read_value(d, f"{place}[{i}]", layer) for i, d in enumerate(data))
    if not isinstance(data, dict):
        return data
    if "kind" in data:
        return layer(data, place)
    if set(data) == {"float"} and data["float"] in ("nan", "inf", "-inf"):
        return float(data["float"])
    start = STARTS.get(data["init"]) if isinstance(data.get("init"), str) else None
    if start is not None:
        numbers = {
            k: read_value(v, f"{place}.{k}", layer)
            for k, v in data.items()
            if k != "init"
        }
        names = {f.name for f in dataclasses.fields(start)}
        if set(numbers) == names and all(fits(v, float) for v in numbers.values()):
            return start(**numbers)
    raise ValueError(f"{place}: this is no value of a layer: {data!r:.80}.")


def describe_constant(value: Any, place: str) -> dict[str, Any]:
    """A number or array written into a model, as JSON; arrays byte for byte.

    Raises:
        TypeError: its dtype cannot go to a file.
    """
    if not isinstance(value, np.ndarray):
        return {"value": describe_value(value, place, no_layer)}
    if value.dtype.name not in DTYPES:
        raise TypeError(f"{place}: arrays of {value.dtype} cannot go to a file.")
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return {
        "array": base64.b64encode(little.tobytes()).decode(),
        "dtype": value.dtype.name,
        "shape": list(value.shape),
    }


def read_constant(data: dict[str, Any], place: str) -> Constant:
    """The number or array that `describe_constant` described.

    Raises:
        TypeError: it is neither a number nor an array.
        ValueError: it is damaged.
    """
    if set(data) == {"value"}:
        value = read_value(data["value"], place, no_layer)
        if not fits(value, bool | int | float):
            raise TypeError(f"{place}.value: a number is needed, got {value!r:.60}.")
        return Constant(value)
    dtype = DTYPES.get(data["dtype"]) if isinstance(data.get("dtype"), str) else None
    shape = read_value(data.get("shape"), place, no_layer)
    if (
        set(data) != {"array", "dtype", "shape"}
        or dtype is None
        or not fits(shape, tuple[int, ...])
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


def no_layer(value: Any, place: str) -> Any:
    """What reads or writes layers where there can be none.

    Raises:
        TypeError: always.
    """
    raise TypeError(f"{place}: a plain value is needed, got {value!r:.60}.")
