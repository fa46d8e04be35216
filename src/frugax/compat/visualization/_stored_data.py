"""The file format of stored data: a header in JSON, then one zstd frame.

    file    magic, frame({"format": 1, "meta": {"structure": s, "leaves": [...],
                                                "level": l, "raw": n, "crc": c}}), body
    body    n bytes, as one zstd frame (at level 0 as they are): the byte-shuffled
            arrays; c is its crc32

The structure is that of `frugax.trees.describe`. A leaf is a JSON value, or
`{"array": [dtype, shape]}` or `{"scalar": [dtype, []]}`, which take their values from
the body, in the order in which they stand. No code is ever run from a file.
"""

import math
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from frugax.errors import CorruptFileError
from frugax.trees import describe, named_leaves, rebuild
from frugax.watch.journal.framing import decode_header, encode_header
from frugax.watch.journal.packing import (
    DTYPES,
    code_of,
    compress,
    decompress,
    shuffle,
    unshuffle,
)

# The newline shows damage by transfers that convert line ends.
_MAGIC = b"FXSTORE\n"
# A forged file may claim any size.
_MOST_BYTES = 2 * 2**30
_LEVEL = 6  # of zstd


def encode(data: object, *, compression: bool) -> bytes:
    """The bytes of a file.

    Args:
        data: nested dicts with text keys, lists and tuples of numbers, text, None,
            truth values and arrays of numbers.
        compression: whether the arrays are compressed.

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
    size = sum(array.nbytes for array in arrays)
    _check_size(size)
    level = _LEVEL if compression else 0
    body = compress(b"".join(shuffle(array).data for array in arrays), level=level)
    meta = {"structure": structure, "leaves": leaves}
    meta |= {"level": level, "raw": size, "crc": zlib.crc32(body)}
    return encode_header(meta, magic=_MAGIC) + body


def decode(data: bytes) -> Any:
    """The data of a file.

    Raises:
        CorruptFileError: the file is damaged or of another kind.
        UnsupportedFileError: a newer version wrote it.
        ValueError: unpacked it would be too large.
    """
    header, at = decode_header(data, magic=_MAGIC, kind="file of stored data")
    match header["meta"]:
        case {
            "structure": structure,
            "leaves": list(leaves),
            "level": int(level),
            "raw": int(size),
            "crc": crc,
        }:
            pass
        case _:
            raise CorruptFileError("its header lacks one of its five entries.")
    body = memoryview(data)[at:]
    # Checked before it is unpacked, so that zstd never sees damaged data.
    if zlib.crc32(body) != crc or size < 0:
        raise CorruptFileError("its body is damaged or cut off.")
    _check_size(size)  # before anything is allocated
    raw = memoryview(decompress(body, size, level=level))
    try:
        return rebuild(structure, _decode_leaves(leaves, raw))
    # From forged files only: a structure that is none, or a shape that NumPy refuses.
    except (ValueError, TypeError, RecursionError) as e:
        raise CorruptFileError(f"its header cannot be read: {e}") from e


def _check_size(size: int) -> None:
    if size > _MOST_BYTES:
        raise ValueError(
            f"the arrays take {size:,} bytes, and at most {_MOST_BYTES:,} are allowed: "
            "save the data in pieces."
        )


def _encode_leaf(name: str, leaf: object, arrays: list[np.ndarray]) -> Any:
    """What JSON can hold of a leaf; an array is added to `arrays`."""
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


def _decode_leaves(leaves: list[Any], raw: memoryview) -> Iterator[object]:
    """Undo `_encode_leaf`; every array is one of its own."""
    for leaf in leaves:
        match leaf:
            case bool() | int() | float() | str():
                yield leaf
            case {"array": [code, list(shape)]} | {"scalar": [code, list(shape)]}:
                if code not in DTYPES or min(shape, default=0) < 0:
                    raise CorruptFileError("it holds an array of an unknown kind.")
                nbytes = math.prod(shape) * DTYPES[code].itemsize
                if nbytes > len(raw):
                    raise CorruptFileError("it holds fewer bytes than its arrays take.")
                array = unshuffle(raw[:nbytes], DTYPES[code]).reshape(shape)
                raw = raw[nbytes:]
                yield array[()] if "scalar" in leaf else array
            case _:
                raise CorruptFileError("it holds something unknown.")
    if raw:
        raise CorruptFileError("it holds more bytes than its arrays take.")
