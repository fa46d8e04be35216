"""Convert layer settings and constants to JSON values and back, with type checks."""

import base64
import binascii
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from frugax.compress.arrays import DTYPE_NAMES, dtype_from_name
from frugax.models.graph import Constant, Fill, Layer, Normal, Uniform

# Files come from strangers: these limits keep a reader within its stack and its memory.
# Lists and objects inside each other, three for a model in a model: Python's stack
# holds a few hundred calls.
MAX_NESTING = 128
MAX_VALUES = 5_000_000

INIT_CLASSES: dict[str, type] = {"Fill": Fill, "Normal": Normal, "Uniform": Uniform}

# --- checks -----------------------------------------------------------------------


def check_size(data: Any) -> None:
    """Check that a JSON value is small and flat enough to walk by recursion."""
    stack, count = [(data, 0)], 0
    while stack:  # without recursion, since this check is what allows it elsewhere
        value, depth = stack.pop()
        count += 1
        if depth > MAX_NESTING:
            raise ValueError(f"the model is nested more than {MAX_NESTING} deep.")
        if count > MAX_VALUES:
            raise ValueError(f"the model has more than {MAX_VALUES:,} entries.")
        if isinstance(value, dict):
            stack += [(v, depth + 1) for v in value.values()]
        elif isinstance(value, list):
            stack += [(v, depth + 1) for v in value]


def join_place(place: str, name: str) -> str:
    """The place of a field: `calls[3]` and `layer` give `calls[3].layer`."""
    return f"{place}.{name}".removeprefix(".")


def place_prefix(place: str) -> str:
    """The start of an error about a place; empty for the whole value."""
    return f"{place}: ".removeprefix(": ")


# --- settings ---------------------------------------------------------------------


def value_to_json(value: Any, place: str, layer: Callable[..., Any]) -> Any:
    """Convert a setting; tuples become lists, and NaN and infinity become objects."""
    # `json` refuses NumPy's scalars.
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    # `json` writes the shortest digits that read back as the same float.
    if type(value) is float:
        if math.isfinite(value):
            return value
        return {"float": repr(value)}  # JSON has no literals for NaN and infinity
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
    """Read a setting that `value_to_json` wrote; lists become tuples."""
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
    name = data.get("init")
    if isinstance(name, str) and name in INIT_CLASSES:
        init = INIT_CLASSES[name]
        numbers = {
            k: value_from_json(v, f"{place}.{k}", layer)
            for k, v in data.items()
            if k != "init"
        }
        names = {f.name for f in dataclasses.fields(init)}
        if set(numbers) == names and all(
            type(v) in (int, float) for v in numbers.values()
        ):
            return init(**numbers)
    raise ValueError(f"{place}: this is not a value of a layer: {data!r:.80}.")


def constant_to_json(value: Any, place: str) -> dict[str, Any]:
    """Convert a number or array that is written into a model; arrays byte for byte."""
    if not isinstance(value, np.ndarray):
        return {"value": value_to_json(value, place, reject_layer)}
    if value.dtype.name not in DTYPE_NAMES:
        raise TypeError(f"{place}: arrays of {value.dtype} cannot go to a file.")
    # Little-endian on every machine, as in .safetensors files.
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return {
        "array": base64.b64encode(little.tobytes()).decode(),
        "dtype": value.dtype.name,
        "shape": list(value.shape),
    }


@dataclasses.dataclass(frozen=True)
class NumberConstant:
    """A number in a file."""

    value: Any


@dataclasses.dataclass(frozen=True)
class ArrayConstant:
    """An array in a file: base64 of its bytes, its dtype and its shape."""

    array: str
    dtype: str
    shape: tuple[int, ...]


def constant_from_json(data: NumberConstant | ArrayConstant, place: str) -> Constant:
    """The number or array that `constant_to_json` wrote."""
    if isinstance(data, NumberConstant):
        value = value_from_json(data.value, place, reject_layer)
        if type(value) not in (bool, int, float):
            raise TypeError(f"{place}.value: a number is needed, got {value!r:.60}.")
        return Constant(value)
    if data.dtype not in DTYPE_NAMES:  # np.dtype also accepts "O" and structures
        raise ValueError(f"{place}.dtype: there is no dtype {data.dtype!r:.60}.")
    dtype, shape = dtype_from_name(data.dtype), data.shape
    try:
        content = base64.b64decode(data.array, validate=True)
    except binascii.Error as e:
        raise ValueError(f"{place}.array: damaged base64: {e}.") from e
    # Two negative lengths would have a positive product.
    if any(n < 0 for n in shape) or len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"{place}: {dtype.name}{list(shape)} does not have {len(content)} bytes."
        )
    return Constant(np.frombuffer(content, dtype).reshape(shape))


def reject_layer(value: Any, place: str) -> Any:
    """Refuse a layer where only a plain value may be."""
    raise TypeError(f"{place}: a plain value is needed, got {value!r:.60}.")
