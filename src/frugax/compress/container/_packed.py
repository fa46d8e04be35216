"""Decode a tensor of a file to a `PackedArray`: the file's own integers and steps."""

import numpy as np

from ..arrays import PackedArray, dtype_from_name
from ..codecs import largest_finite
from ._decode import decode_integers
from ._layout import FileContent
from ._metadata import Record

_FAR_BYTES = 8  # of an integer beyond the bits, and of its place
_SHORTEST_GROUP = 16


def decode_packed(content: FileContent, record: Record) -> PackedArray | None:
    """Return a tensor packed, with the very values of the file; None if it cannot be.

    Tensors without an axis for matrix products, exact ones and those in layers cannot,
    nor can those that would take more bytes than the dense array.
    """
    if len(record.shape) < 2:
        return None
    coded = decode_integers(content, record)
    if coded is None:
        return None
    integers, steps = coded
    dtype = dtype_from_name(record.dtype)
    # Programs do not clip products that are beyond the range of the weights.
    largest = max(int(integers.max(initial=0)), -int(integers.min(initial=0)))
    if largest * float(steps.max(initial=0)) > largest_finite(dtype):
        return None
    grouped = _group_steps(steps, record.shape)
    if grouped is None:
        return None
    steps, group = grouped
    length, bits = min((_count_bytes(integers, bits), bits) for bits in (4, 8))
    if length + steps.nbytes >= record.nbytes:
        return None
    return PackedArray.pack(
        integers.astype(np.int8),
        steps,
        _split_far(integers, bits),
        bits=bits,
        group=group,
        axis=-1,
        dtype=dtype,
    )


def _is_far(integers: np.ndarray, bits: int) -> np.ndarray:
    highest = (1 << (bits - 1)) - 1
    return (integers > highest) | (integers < -highest - 1)


def _count_bytes(integers: np.ndarray, bits: int) -> int:
    """Return the bytes of the integers with those beyond the bits apart."""
    matrices = integers.size // max(1, integers.shape[-1] * integers.shape[-2])
    far = _is_far(integers, bits).reshape(matrices, -1).sum(axis=1).max(initial=0)
    row = integers.shape[-1]
    if bits == 4:
        row = -(-row // 2)
    whole = integers.size // max(1, integers.shape[-1]) * row
    return whole + int(far) * matrices * _FAR_BYTES


def _split_far(integers: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return where integers beyond the bits stand in each matrix, and the integers."""
    matrix = integers.shape[-1] * integers.shape[-2]
    flat = integers.reshape(-1, matrix)
    is_far = _is_far(flat, bits)
    most = int(is_far.sum(axis=1).max(initial=0))
    if not most:
        return None
    # Shorter lists are filled up with places beyond the end.
    at = np.full((len(flat), most), matrix, np.int32)
    far = np.zeros((len(flat), most), np.int32)
    for row, of_matrix in enumerate(is_far):
        (where,) = of_matrix.nonzero()
        at[row, : len(where)], far[row, : len(where)] = where, flat[row, where]
    leading = integers.shape[:-2]
    return at.reshape(*leading, most), far.reshape(*leading, most)


def _group_steps(
    steps: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, int] | None:
    """Return steps that broadcast against a shape or its groups, and the group."""
    # Axes before the last two stand whole, so that programs may loop over them.
    steps = steps.reshape((1,) * (len(shape) - steps.ndim) + steps.shape)
    steps = np.broadcast_to(steps, (*shape[:-2], *steps.shape[-2:]))
    if steps.shape[-1] < shape[-1] or steps.shape[-2] < shape[-2]:
        return np.ascontiguousarray(steps), 0
    # A step for every number here: long rows have one for each of equal pieces.
    for group in range(shape[-1], _SHORTEST_GROUP - 1, -1):
        if shape[-1] % group:
            continue
        pieces = steps.reshape(*shape[:-1], -1, group)
        if (pieces == pieces[..., :1]).all():
            return np.ascontiguousarray(pieces[..., 0]), group
    return None
