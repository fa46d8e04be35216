"""Validate a record's steps, names, numbers and arrays before a journal takes it.

Numbers are widened to int64, float32 or float64, exactly; arrays keep their dtype.
"""

import math
import operator
from collections.abc import Collection, Container, Sequence
from typing import Any, SupportsIndex, cast

import numpy as np
from jaxtyping import Int64, Shaped

from .packing import code_of

# The limits keep a block's head below 1 MiB and a forged file's allocations below
# 1 GiB. 32 axes are the most that NumPy 1 could read.
MAX_COLUMNS = 1000
MAX_NAME_LENGTH = 100
MAX_AXES = 32
MAX_RECORD_BYTES = 2**30


def as_step(step: object, *, after: int | None = None) -> int:
    """Return the number of a step as a Python int."""
    try:
        # `int()` would accept 1.5 and "3"; `operator.index` takes integers of any
        # library.
        number = operator.index(cast(SupportsIndex, step))
    except TypeError as e:
        raise TypeError(f"step must be a whole number, got {step!r:.99}.") from e
    if after is not None and number <= after:
        raise ValueError(
            f"step must be above {after}, got {number}. Use rewind to write steps anew."
        )
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"step must fit in int64, got {number}.")
    return number


def as_steps(steps: object, *, after: int | None = None) -> Int64[np.ndarray, " n"]:
    """Convert the steps of several records."""
    array = np.asarray(steps)
    if array.ndim != 1:
        raise ValueError(f"steps must have shape (n,), got {array.shape}.")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"steps must be whole numbers, got {array.dtype}.")
    # The cast below would wrap large unsigned numbers silently.
    if array.dtype.kind == "u" and array.size and array.max() >= 2**63:
        raise ValueError(f"steps must fit in int64, got {array.max()}.")
    array = array.astype(np.int64)
    falls = np.flatnonzero(array[1:] <= array[:-1])
    if falls.size:
        at = int(falls[0])
        raise ValueError(
            f"steps must rise, got {array[at]} and then {array[at + 1]} at {at + 1}."
        )
    if array.size:
        as_step(int(array[0]), after=after)
    return array


def as_number(name: str, value: object) -> np.number:
    """Convert a value to int64, float32 or float64."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(
            f"{name!r} must fit in int64, got {value!r:.40}; give a float instead."
        )
    array = to_numpy(name, value)
    if array.shape != ():
        raise TypeError(f"{name!r} must be one number, got shape {array.shape}.")
    if not is_real(array.dtype):
        raise TypeError(f"{name!r} must be a real number, got {value!r:.99}.")
    return as_numbers(name, array).reshape(1)[0]


def to_numpy(name: str, value: Any) -> Shaped[np.ndarray, "..."]:
    """Convert an array of any library, also a torch tensor with a graph or on a GPU."""
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu()
            # NumPy has no bfloat16 of its own; float32 holds each exactly.
            if value.is_floating_point() and value.element_size() < 4:
                value = value.float()
        return np.asarray(value)
    # Another library's array raises whatever it likes.
    except Exception as e:
        raise TypeError(
            f"{name!r} must be a real number, got {type(value).__name__} that NumPy "
            f"cannot read ({' '.join(str(e).split())[:200]}): give float(value)."
        ) from e


def as_numbers(
    name: str, array: Shaped[np.ndarray, "..."]
) -> Shaped[np.ndarray, "..."]:
    """Convert real numbers to int64, float32 or float64, in a new array."""
    if not is_real(array.dtype):
        raise TypeError(f"{name!r} must be real numbers, got {array.dtype}.")
    kind = array.dtype.kind
    if kind in "biu" or array.dtype.name.startswith(("int", "uint")):
        if kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{name!r} must fit in int64, got {array.max()}.")
        return array.astype(np.int64)
    if array.dtype.itemsize == 8:
        return array.astype(np.float64)
    return array.astype(np.float32)


def check_dtype(name: str, dtype: np.dtype) -> str:
    """Return the name of a dtype in a file."""
    code = code_of(dtype)
    if code is None:
        raise TypeError(f"{name!r} must hold numbers or truth values, got {dtype}.")
    return code


def check_size(name: str, shape: Sequence[int], itemsize: int) -> None:
    """Refuse an array that is too large for a block."""
    size = math.prod(shape) * itemsize
    if size > MAX_RECORD_BYTES or not fits_array(shape):
        raise ValueError(
            f"{name!r} of shape {tuple(shape)} takes {size:,} bytes a record; at most "
            f"{MAX_RECORD_BYTES:,}, on {MAX_AXES} axes, are taken. Record a part."
        )


def fits_array(shape: Sequence[int]) -> bool:
    """Whether NumPy can allocate an array of this shape, even an empty one."""
    # NumPy refuses (2**40, 2**40, 0) although it has no elements.
    sides = math.prod(side or 1 for side in shape)
    return sides <= MAX_RECORD_BYTES and len(shape) <= MAX_AXES


def is_real(dtype: np.dtype) -> bool:
    """Whether `as_number` accepts values of this dtype.

    Those of ml_dtypes, such as bfloat16 and int4, are widened exactly, as float16 is.
    """
    return (
        dtype.kind in "biu"
        or (dtype.kind == "f" and dtype.itemsize <= 8)
        or (
            # To NumPy they are raw bytes.
            dtype.kind == "V"
            and dtype.name.startswith(("bfloat", "float", "int", "uint"))
        )
    )


def check_names(names: Collection[object]) -> None:
    """Refuse names that do not fit in the head of a block."""
    if len(names) > MAX_COLUMNS:
        raise ValueError(
            f"a record holds at most {MAX_COLUMNS} values, got {len(names)}."
        )
    for name in names:
        check_name(name, "a name")


def check_name(name: object, what: str, *, min_length: int = 1) -> None:
    """Refuse a name that is not text, too short or too long."""
    if not isinstance(name, str) or not min_length <= len(name) <= MAX_NAME_LENGTH:
        raise ValueError(
            f"{what} must be text of {min_length} to {MAX_NAME_LENGTH} characters, got "
            f"{name!r:.99}."
        )
    try:
        name.encode()
    except UnicodeEncodeError as e:
        # Such as a lone surrogate, which UTF-8 cannot represent.
        raise ValueError(f"{what}, {name!r}, is not valid Unicode text.") from e


def number_name(name: str, taken: Container[str]) -> str:
    """Return a name with a number behind it if it is taken, as pandas does."""
    free, number = name, 0
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free
