"""Strategy "csr": sparse matrices in compressed sparse row format.

The places are a mask of booleans, which the entropy coder packs to less than CSR's
column numbers; zeros come back as zeros, whatever the error allowed, and -0 as 0. CSR
itself is for computing: `to_csr` makes it.
"""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
from jaxtyping import Int, Shaped

_PLACES, _VALUES = ".nonzero", ".values"
# A mask costs at most one bit a number, which half of the values repay at once.
_MIN_ZEROS_FRAC = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class CsrMatrix:
    """A sparse matrix by rows, as SciPy and torch take it.

    Attributes:
        values: the numbers that are not zero, row by row.
        columns: the column of each.
        row_starts: where each row starts in both, and their length.
        shape: rows and columns.
    """

    values: Shaped[np.ndarray, " nonzero"]
    columns: Int[np.ndarray, " nonzero"]
    row_starts: Int[np.ndarray, " rows+1"]
    shape: tuple[int, int]


def zeros_frac(array: np.ndarray) -> float:
    """Return the share of zeros, -0 among them: pruning by a mask leaves these."""
    if not array.size:
        return 0.0
    # Comparison and not signs: -0 equals 0 but has other bits.
    return 1.0 - int((array != 0).sum()) / array.size


def is_sparse(array: np.ndarray) -> bool:
    """Whether the strategy applies: a matrix of which half is zeros."""
    # Vectors are biases and scales, which the codec keeps exact; splitting them saves
    # nothing.
    return array.ndim >= 2 and zeros_frac(array) >= _MIN_ZEROS_FRAC


def pack_sparse(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replace every sparse matrix by two tensors, `name.nonzero` and `name.values`."""
    packed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not is_sparse(array):
            packed[name] = array
            continue
        places = array != 0
        packed[name + _PLACES] = places
        # One row: tensors with one axis are taken for biases and kept exact.
        packed[name + _VALUES] = array[places].reshape(1, -1)
    return packed


def list_packed(names: Collection[str]) -> list[str]:
    """Return the names of the tensors that were packed."""
    return [
        name.removesuffix(_PLACES)
        for name in names
        # Both parts must be there: a weight of the model may itself end in ".nonzero".
        if name.endswith(_PLACES) and name.removesuffix(_PLACES) + _VALUES in names
    ]


def unpack_sparse(places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Put a packed matrix together again."""
    array = np.zeros(places.shape, values.dtype)
    array[places] = values.reshape(-1)
    return array


def part_names(name: str) -> tuple[str, str]:
    """Return the names of the two tensors of a packed one."""
    return name + _PLACES, name + _VALUES


def to_csr(array: Shaped[np.ndarray, "..."]) -> CsrMatrix:
    """Convert a matrix to CSR."""
    if array.ndim != 2:
        raise ValueError(f"CSR is for matrices; this has the shape {array.shape}.")
    places = array != 0
    counts = places.sum(axis=1)
    return CsrMatrix(
        values=array[places],
        columns=np.ascontiguousarray(np.nonzero(places)[1]),
        row_starts=np.concatenate([[0], np.cumsum(counts)]),
        shape=(array.shape[0], array.shape[1]),
    )
