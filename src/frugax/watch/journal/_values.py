"""What a record may hold: steps, names, numbers and arrays, checked before it is taken.

Numbers are widened to int64, float32 or float64, exactly; arrays keep their dtype.
"""

import math
import operator
from collections.abc import Collection, Sequence

import numpy as np

from ._dtypes import DTYPES, code_of

MOST_COLUMNS = 1000
LONGEST_NAME = 100
MOST_AXES = 32
MOST_RECORD_BYTES = 2**30


def as_step(step: object, *, after: int | None = None) -> int:
    """The number of a step, as a record carries it.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is beyond int64, or not above `after`.
    """
    try:
        number = operator.index(step)  # pyright: ignore[reportArgumentType]
    except TypeError as e:
        raise TypeError(f"step must be a whole number, got {step!r:.99}.") from e
    if after is not None and number <= after:
        raise ValueError(
            f"step must be above {after}, got {number}. Use rewind to write steps anew."
        )
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"step must fit in int64, got {number}.")
    return number


def as_steps(steps: object, *, after: int | None = None) -> np.ndarray:
    """Many steps at once, `(n,)` int64, rising.

    Raises:
        TypeError: they are no whole numbers.
        ValueError: they are no list, do not rise, or the first is not above `after`.
    """
    array = np.asarray(steps)
    if array.ndim != 1:
        raise ValueError(f"steps must have shape (n,), got {array.shape}.")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"steps must be whole numbers, got {array.dtype}.")
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
    """The value as int64, float32 or float64.

    Raises:
        TypeError: it is no real number.
        ValueError: it is beyond int64.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(
            f"{name!r} must fit in int64, got {value!r:.40}; give a float instead."
        )
    array = np.asarray(value)
    if array.shape != ():
        raise TypeError(f"{name!r} must be one number, got shape {array.shape}.")
    if not is_real(array.dtype):
        raise TypeError(f"{name!r} must be a real number, got {value!r:.99}.")
    return as_numbers(name, array).reshape(1)[0]


def as_numbers(name: str, array: np.ndarray) -> np.ndarray:
    """Real numbers as int64, float32 or float64, in an array of their own.

    Raises:
        TypeError: they are no real numbers.
        ValueError: one is beyond int64.
    """
    if not is_real(array.dtype):
        raise TypeError(f"{name!r} must be real numbers, got {array.dtype}.")
    kind, width = array.dtype.kind, array.dtype.itemsize
    if kind in "biu":
        if kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{name!r} must fit in int64, got {array.max()}.")
        return array.astype(np.int64)
    return array.astype(np.float64 if width == 8 else np.float32)


def as_array(name: str, value: object) -> np.ndarray:
    """A copy of an array, in C order and little-endian.

    Raises:
        TypeError: no file can hold its dtype.
        ValueError: one record of it is too large.
    """
    array = np.asarray(value)
    code = code_of(array.dtype)
    if code is None:
        raise TypeError(
            f"{name!r} must hold numbers or truth values, got {array.dtype}."
        )
    check_size(name, array.shape, array.dtype.itemsize)
    return np.array(array, DTYPES[code], order="C")


def check_size(name: str, shape: Sequence[int], itemsize: int) -> None:
    """Refuse an array that no block can hold.

    Raises:
        ValueError: it is larger than 1 GiB, or has more than 32 axes.
    """
    size = math.prod(shape) * itemsize
    if size > MOST_RECORD_BYTES or not fits_array(shape):
        raise ValueError(
            f"{name!r} of shape {tuple(shape)} takes {size:,} bytes a record; at most "
            f"{MOST_RECORD_BYTES:,}, on {MOST_AXES} axes, are taken. Record a part."
        )


def fits_array(shape: Sequence[int]) -> bool:
    """Whether NumPy can make an array of it, also one that is empty."""
    sides = math.prod(side or 1 for side in shape)
    return sides <= MOST_RECORD_BYTES and len(shape) <= MOST_AXES


def is_real(dtype: np.dtype) -> bool:
    """Whether `as_number` takes what has this dtype.

    ml_dtypes' bfloat16 and float8 kinds are widened exactly, as float16 is.
    """
    return (
        dtype.kind in "biu"
        or (dtype.kind == "f" and dtype.itemsize <= 8)
        or dtype.name.startswith(("bfloat", "float8"))
    )


def check_names(names: Collection[object]) -> None:
    """Refuse what a block's head cannot hold.

    Raises:
        ValueError: there are too many, or one is no text, empty or too long.
    """
    if len(names) > MOST_COLUMNS:
        raise ValueError(
            f"a record holds at most {MOST_COLUMNS} values, got {len(names)}."
        )
    for name in names:
        check_name(name, "a name")


def check_name(name: object, what: str, *, shortest: int = 1) -> None:
    """Refuse a name that is no text, too short or too long.

    Raises:
        ValueError: it is.
    """
    if not isinstance(name, str) or not shortest <= len(name) <= LONGEST_NAME:
        raise ValueError(
            f"{what} must be text of {shortest} to {LONGEST_NAME} characters, got "
            f"{name!r:.99}."
        )
    try:
        name.encode()
    except UnicodeEncodeError as e:
        raise ValueError(f"{what}, {name!r}, is no Unicode text.") from e
