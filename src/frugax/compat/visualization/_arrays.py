"""Make arrays smaller: exactly, or within a requested error."""

# Callers are checked at run time, whatever their annotations promise.
# pyright: reportUnnecessaryIsInstance=false

import numpy as np

# Signed first where two are equally small: differences of them may be negative.
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


def optimize_array_memory(
    arr: np.ndarray, *, relative_error: float = 0.0
) -> np.ndarray:
    """The array in the smallest type that holds every value.

    Whole numbers go to the smallest integer type. `float64` goes to `float32` if every
    value comes back bit for bit: NaN payloads, negative zeros and infinities included.
    `float16` is never chosen unless an error is allowed: it is slow on CPUs.

    Args:
        arr: any array. What cannot be made smaller comes back as it is, not copied;
            so do booleans, complex numbers, text, objects, and subclasses such as
            masked arrays.
        relative_error: most that a value may change by, as a share of its size; in
            [0, 1). NaN stays NaN and infinities stay, whatever is allowed. Floats only.

    Returns:
        An array of the same shape and values, in native byte order if it was changed.

    Raises:
        TypeError: `arr` is not an array.
        ValueError: `relative_error` is not in [0, 1).

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
    if not 0 <= relative_error < 1:
        raise ValueError(f"relative_error must be in [0, 1), got {relative_error}.")
    if type(arr) is not np.ndarray or not arr.size:
        return arr
    for name in _smaller_types(arr, exact=not relative_error):
        with np.errstate(all="ignore"):  # what overflows is found by the comparison
            small = arr.astype(name)
        if _fits(arr, small, relative_error):
            return small
    return arr


def _smaller_types(arr: np.ndarray, *, exact: bool) -> list[str]:
    """The types to try, smallest first."""
    if arr.dtype.kind in "iu":
        # As Python integers, because uint64 and int64 have no common integer type.
        low, high = int(arr.min()), int(arr.max())
        names = [
            name
            for name in _INTEGERS
            if np.iinfo(name).min <= low and high <= np.iinfo(name).max
        ][:1]
    elif arr.dtype.kind == "f":
        names = ["float32"] if exact else ["float16", "float32"]
    else:
        names = []
    return [name for name in names if np.dtype(name).itemsize < arr.dtype.itemsize]


def _fits(arr: np.ndarray, small: np.ndarray, relative: float) -> bool:
    old = np.ascontiguousarray(arr, arr.dtype.newbyteorder("="))
    with np.errstate(all="ignore"):
        new = np.ascontiguousarray(small, old.dtype)
    # Bytes and not values: `==` takes -0.0 for 0.0, and NaN for different from itself.
    if old.tobytes() == new.tobytes():
        return True
    if not relative:
        return False
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True):
        return False
    old, new = old[finite], new[finite]
    return bool((np.abs(new - old) <= relative * np.abs(old)).all())
