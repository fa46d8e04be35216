"""Compress arrays in memory: exactly, or within a requested error."""

# Callers are checked at run time, whatever their annotations promise.
# pyright: reportUnnecessaryIsInstance=false

import math

import numpy as np

# Signed first where two are equally small: differences of them may be negative.
_INTEGERS = tuple(
    np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32")
)
# Looked at piece by piece, so that little is copied and most misfits show at once.
_PIECE = 1 << 16


def optimize_array_memory(
    arr: np.ndarray,
    *,
    absolute_error: float = 0.0,
    relative_error: float = 0.0,
) -> np.ndarray:
    """The array in the smallest type that holds every value.

    Whole numbers go to the smallest integer type. `float64` goes to `float32` (and
    `complex128` to `complex64`) if every value comes back bit for bit: NaN payloads,
    negative zeros and infinities included. `float16` is never chosen unless an error
    is allowed: it is slow on CPUs.

    Args:
        arr: any array. What cannot be made smaller comes back as it is, not copied;
            so do booleans, text, objects, and subclasses such as masked arrays.
        absolute_error: most that a value may change by; >= 0.
        relative_error: most that a value may change by, as a share of its size; in
            [0, 1). The two add up: `|new - old| <= absolute + relative * |old|`. NaN
            stays NaN and infinities stay, whatever is allowed. Floats only; of complex
            numbers each part.

    Returns:
        An array of the same shape and values, in native byte order if it was changed.

    Raises:
        TypeError: `arr` is not an array.
        ValueError: an error that is negative, not finite, or a relative one >= 1.

    Example:
        >>> optimize_array_memory(np.array([1, 2, 3])).dtype
        dtype('int8')
        >>> optimize_array_memory(np.array([0.5, 0.1])).dtype  # 0.1 would change
        dtype('float64')
        >>> optimize_array_memory(np.array([0.5, 0.1]), relative_error=1e-7).dtype
        dtype('float32')
    """
    if not isinstance(arr, np.ndarray):
        raise TypeError(
            f"arr must be a NumPy array, got {type(arr).__name__}: convert it with "
            "np.asarray first."
        )
    if not 0 <= absolute_error < math.inf:
        raise ValueError(
            f"absolute_error must be >= 0 and finite, got {absolute_error}."
        )
    if not 0 <= relative_error < 1:
        raise ValueError(f"relative_error must be in [0, 1), got {relative_error}.")
    if type(arr) is not np.ndarray or not arr.size:
        return arr
    if arr.dtype.kind in "iu":
        return _smallest_integer(arr)
    for dtype in _smaller_floats(arr.dtype, exact=not absolute_error + relative_error):
        if _fits(arr, dtype, absolute_error, relative_error):
            with np.errstate(all="ignore"):
                return arr.astype(dtype)
    return arr


def _smallest_integer(arr: np.ndarray) -> np.ndarray:
    # As Python integers, because uint64 and int64 have no common integer type in NumPy.
    low, high = int(arr.min()), int(arr.max())
    for dtype in _INTEGERS:
        if dtype.itemsize >= arr.dtype.itemsize:
            break
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return arr.astype(dtype)
    return arr


def _smaller_floats(dtype: np.dtype, *, exact: bool) -> list[np.dtype]:
    """The types to try, smallest first."""
    if dtype.kind == "c":
        names = ["complex64"]
    elif dtype.kind == "f":
        names = ["float32"] if exact else ["float16", "float32"]
    else:
        names = []
    return [np.dtype(n) for n in names if np.dtype(n).itemsize < dtype.itemsize]


def _fits(arr: np.ndarray, dtype: np.dtype, absolute: float, relative: float) -> bool:
    flat = arr.ravel(order="K")  # a view where the array has no gaps
    native = arr.dtype.newbyteorder("=")
    for start in range(0, flat.size, _PIECE):
        old = flat[start : start + _PIECE].astype(native)
        with np.errstate(all="ignore"):  # what overflows is found by the comparison
            new = old.astype(dtype).astype(native)
        # Bytes and not values: `==` takes -0.0 for 0.0, and NaN for different from
        # itself.
        if old.tobytes() == new.tobytes():
            continue
        if not absolute + relative or not _near(old, new, absolute, relative):
            return False
    return True


def _near(old: np.ndarray, new: np.ndarray, absolute: float, relative: float) -> bool:
    if old.dtype.kind == "c":  # part by part, so that an infinity keeps its direction
        part = np.dtype(f"f{old.itemsize // 2}")
        old, new = old.view(part), new.view(part)
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True):
        return False
    old, new = old[finite], new[finite]
    return bool((np.abs(new - old) <= absolute + relative * np.abs(old)).all())
