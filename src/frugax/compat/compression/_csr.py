"""Strategy "csr": where half of a matrix is zero, the places and the values apart.

The places are a mask of booleans, which the entropy coder packs to less than CSR's
column numbers; zeros come back as zeros, whatever the error allowed, and -0 as 0. CSR
itself is for computing: `csr_of` gives it.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

_PLACES, _VALUES = ".nonzero", ".values"
LEAST_ZEROS = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class CsrMatrix:
    """A sparse matrix by rows, as scipy and torch take it.

    Attributes:
        values: the numbers that are not zero, row by row.
        columns: the column of each.
        row_starts: where each row starts in both, and their length; `(rows + 1,)`.
        shape: rows and columns.
    """

    values: np.ndarray
    columns: np.ndarray
    row_starts: np.ndarray
    shape: tuple[int, int]


def zeros_frac(array: np.ndarray) -> float:
    """The share of zeros, -0 among them: pruning by a mask leaves these."""
    if not array.size:
        return 0.0
    return 1.0 - int((array != 0).sum()) / array.size


def is_sparse(array: np.ndarray) -> bool:
    """Whether the strategy applies: a matrix, half of it zeros."""
    return array.ndim >= 2 and zeros_frac(array) >= LEAST_ZEROS


def packed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every sparse matrix as two tensors, `name.nonzero` and `name.values`."""
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not is_sparse(array):
            found[name] = array
            continue
        places = array != 0
        found[name + _PLACES] = places
        # One row, for tensors with one axis are taken for biases and kept exact.
        found[name + _VALUES] = array[places].reshape(1, -1)
    return found


def packed_names(names: Mapping[str, object]) -> list[str]:
    """The names of the tensors that were packed."""
    return [
        name.removesuffix(_PLACES)
        for name in names
        if name.endswith(_PLACES) and name.removesuffix(_PLACES) + _VALUES in names
    ]


def unpacked(places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The matrix again."""
    array = np.zeros(places.shape, values.dtype)
    array[places] = values.reshape(-1)
    return array


def names_of(name: str) -> tuple[str, str]:
    """The names of the two tensors of a packed one."""
    return name + _PLACES, name + _VALUES


def csr_of(array: np.ndarray) -> CsrMatrix:
    """The CSR form of a matrix.

    Raises:
        ValueError: it has not two axes.
    """
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
