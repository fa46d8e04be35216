"""The file format of stored data: JSON and the bytes of arrays, in one zstd frame.

    file    one zstd frame, with zstd's checksum, of: JSON, a newline, the arrays
    JSON    {"format": 1, "structure": structure, "leaves": [leaf]}
    arrays  byte-shuffled, in the order of the leaves

The structure is that of `frugax.trees.describe`. A leaf is a JSON value, or
`{"array": [dtype, shape]}` or `{"scalar": [dtype, []]}`. No code is ever run from a
file.
"""

import io
import json
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import zstandard

from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.trees import describe, named_leaves, rebuild
from frugax.watch.journal.packing import DTYPES, code_of, shuffle, unshuffle

_FORMAT = 1
# A forged file may claim any size.
_MOST_BYTES = 2 * 2**30
_LEVEL, _FAST_LEVEL = 6, -10  # of zstd


def encode(data: object, *, compression: bool) -> bytes:
    """The bytes of a file.

    Args:
        data: nested dicts with text keys, lists and tuples of numbers, text, None,
            truth values and arrays of numbers.
        compression: whether time is spent on making the file small.

    Raises:
        TypeError: a value is of another kind; says where.
        ValueError: it is nested over 100 deep, holds itself, a number is too long, or
            the data are too large.
    """
    structure = describe(data)
    if isinstance(structure, dict) and "flat" in structure:
        # Refused, since it would come back as a container of another type.
        raise TypeError(
            f"the data hold a container of type {structure['from']}: only dicts with "
            "text keys, lists and tuples can be stored."
        )
    arrays: list[np.ndarray] = []
    leaves = [_encode_leaf(name, leaf, arrays) for name, leaf in named_leaves(data)]
    meta = {"format": _FORMAT, "structure": structure, "leaves": leaves}
    header = json.dumps(meta).encode() + b"\n"
    size = len(header) + sum(array.nbytes for array in arrays)
    if size > _MOST_BYTES:
        raise ValueError(
            f"the data take {size:,} bytes, and at most {_MOST_BYTES:,} are allowed: "
            "save them in pieces."
        )
    content = b"".join([header, *(shuffle(array).data for array in arrays)])
    level = _LEVEL if compression else _FAST_LEVEL
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    return compressor.compress(content)


def decode(data: bytes) -> Any:
    """The data of a file.

    Raises:
        CorruptFileError: the file is damaged or of another kind.
        UnsupportedFileError: a newer version wrote it.
    """
    try:
        size = zstandard.frame_content_size(data)
        if size > _MOST_BYTES:  # before anything is allocated
            raise CorruptFileError(f"it claims to hold {size:,} bytes.")
        content = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise CorruptFileError(f"it is damaged, or not stored data: {e}.") from e
    arrays = io.BytesIO(content)
    try:
        header = json.loads(arrays.readline())
        if header["format"] > _FORMAT:
            raise UnsupportedFileError(
                f"this is stored data of format {header['format']}; this version reads "
                f"format {_FORMAT}. Install a newer frugax."
            )
        value = rebuild(header["structure"], _decode_leaves(header["leaves"], arrays))
    # From files of another kind and forged ones.
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as e:
        raise CorruptFileError(f"it is not stored data: {e!r:.99}.") from e
    if arrays.read(1):
        raise CorruptFileError("it holds more bytes than its arrays take.")
    return value


def _encode_leaf(name: str, leaf: object, arrays: list[np.ndarray]) -> Any:
    """Return a JSON value for a leaf; an array is added to `arrays`."""
    # Exact types: a subclass, such as an enum's, would come back as another type.
    if type(leaf) in (bool, int, float, str):
        return leaf
    is_array = isinstance(leaf, np.generic | np.ndarray | jax.Array)
    if not is_array or isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(
            f"{name or 'the data'} is a {type(leaf).__qualname__}: only numbers, text, "
            "None, truth values and arrays can be stored."
        )
    # This waits for the device, and gathers an array that is sharded.
    array = np.asarray(leaf)
    code = code_of(array.dtype)
    if code is None:
        raise TypeError(
            f"{name or 'the data'} is an array of {array.dtype}, not of numbers."
        )
    # Not ascontiguousarray: that makes a () array one of (1,).
    arrays.append(np.asarray(array, DTYPES[code], order="C"))
    # NumPy's scalars keep their dtype this way; a Python number would lose float32.
    kind = "scalar" if isinstance(leaf, np.generic) else "array"
    return {kind: [code, list(array.shape)]}


def _decode_leaves(leaves: list[Any], arrays: io.BytesIO) -> Iterator[object]:
    """Undo `_encode_leaf`; every array is one of its own."""
    for leaf in leaves:
        if not isinstance(leaf, dict):
            yield leaf
            continue
        ((kind, (code, shape)),) = leaf.items()
        dtype = DTYPES[code]
        raw = arrays.read(math.prod(shape) * dtype.itemsize)
        array = unshuffle(raw, dtype).reshape(shape)
        yield array[()] if kind == "scalar" else array
