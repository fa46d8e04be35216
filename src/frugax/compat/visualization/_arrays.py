"""Make arrays smaller: exactly, or within a requested error."""

# Callers are checked at run time, whatever their annotations promise.

import numpy as np

# Signed first where two are equally small: differences of them may be negative.
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def optimize_array_memory(
    arr: np.ndarray, *, relative_error: float = 0.0
) -> np.ndarray:
    """The array in the smallest type that holds every value.

    Whole numbers go to the smallest integer type. `float64` goes to `float32` if every
    value comes back equal, negative zeros, infinities and NaN included. `float16` is
    never chosen: it is slow on CPUs.

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
    small = arr
    if type(arr) is not np.ndarray or not arr.size:
        return arr
    if arr.dtype.kind in "iu":
        # As Python integers, because uint64 and int64 have no common integer type.
        low, high = int(arr.min()), int(arr.max())
        types = [np.iinfo(name) for name in _INTEGERS]
        fitting = [t.dtype for t in types if t.min <= low and high <= t.max]
        small = arr.astype(fitting[0])
    elif arr.dtype.kind == "f":
        with np.errstate(all="ignore"):  # what overflows is found by the comparison
            rounded = arr.astype(np.float32)
            is_same = (rounded == arr) | (np.isnan(rounded) & np.isnan(arr))
            is_near = np.abs(rounded - arr) <= relative_error * np.abs(arr)
        small = rounded if (is_same | is_near).all() else arr
    return small if small.nbytes < arr.nbytes else arr
