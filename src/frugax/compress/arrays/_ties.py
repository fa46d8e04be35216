"""Find tensors that are one tensor under several names, as tied embeddings are."""

from collections.abc import Mapping

import numpy as np

from ._mapped import release

# Small tensors are alike by chance, as biases of zeros are, and may differ later.
_MIN_COPY = 1 << 12
_SAMPLE = 256


def find_ties(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the first name of each tensor that stands under a later name again.

    Tensors are tied that are in one place in memory. So are copies of matrices, which
    files have where a format cannot share them.
    """
    first: dict[object, str] = {}
    copies: dict[object, list[str]] = {}
    ties: dict[str, str] = {}
    for name, array in arrays.items():
        if not array.size:
            continue
        kind = array.dtype.name, array.shape
        place = kind, array.__array_interface__["data"][0]
        if first.setdefault(place, name) != name:
            ties[name] = first[place]
            continue
        if array.ndim < 2 or array.size < _MIN_COPY:
            continue
        flat = array.reshape(-1)
        sample = flat[:: max(1, array.size // _SAMPLE)].tobytes()
        candidates = copies.setdefault((kind, sample), [])
        same = (n for n in candidates if _is_copy(arrays[n], array))
        if (original := next(same, None)) is not None:
            ties[name] = original
        else:
            candidates.append(name)
    return ties


def _is_copy(one: np.ndarray, other: np.ndarray) -> bool:
    a, b = (x.reshape(-1).view(np.uint8) for x in (one, other))
    # Not of one number alone: these are alike by chance too.
    numbers = a.reshape(-1, one.itemsize)
    same = np.array_equal(a, b) and not (numbers == numbers[0]).all()
    release(one)
    release(other)
    return same
