"""The file format of stored data: a header in JSON, then one zstd frame.

    file    magic, frame({"format": 1, "meta": {"level": l, "raw": n, "tree": t,
                                                "crc": c}}), body
    body    n bytes, as one zstd frame (at level 0 as they are): t bytes of the tree in
            JSON, then the byte-shuffled arrays; c is its crc32

In the tree a list is a list, and every mapping has one key that names its type:

    {"dict": [[key, value], ...]}   {"tuple": [value, ...]}
    {"complex": [real, imaginary]}  {"bytes": length}
    {"scalar": dtype}               {"array": [dtype, shape]}

`bytes`, `scalar` and `array` take their values from the arrays, in the order in which
they stand. No code is ever run from a file.
"""

import json
import math
import zlib
from typing import Any

import jax
import numpy as np

from frugax.errors import CorruptFileError
from frugax.watch.journal.framing import FORMAT, decode_header, encode_frame
from frugax.watch.journal.packing import (
    DTYPES,
    code_of,
    compress,
    decompress,
    shuffle,
    unshuffle,
)

# The newline shows damage by transfers that convert line ends.
MAGIC = b"FXSTORE\n"
# Far below Python's recursion limit of 1000, as each level takes several calls, and a
# list that contains itself ends here too.
_MOST_DEEP = 100
# Python reads no longer whole numbers from text, by default.
_MOST_BITS = 14_000
# A forged file may claim any size.
_MOST_BYTES = 2 * 2**30
# Python takes some twenty bytes in memory for each of these.
_MOST_TREE_BYTES = 64 * 2**20
_LEVEL = 6  # of zstd


def encode(data: object, *, compression: bool) -> bytes:
    """The bytes of a file.

    Args:
        data: nested dicts, lists, tuples, numbers, text, None, truth values, bytes and
            arrays of numbers.
        compression: whether they are compressed.

    Raises:
        TypeError: a value is of another kind; says where.
        ValueError: it is nested over 100 deep, holds itself, a number is too long, or
            the data are too large.
    """
    arrays: list[np.ndarray] = []
    # NaN and infinity are written as Python's own words, which `json.loads` reads back.
    tree = json.dumps(_to_tree(data, arrays, "data", 0), separators=(",", ":")).encode()
    size = len(tree) + sum(array.nbytes for array in arrays)
    _check_size(size, len(tree))
    level = _LEVEL if compression else 0
    body = compress(b"".join([tree, *(shuffle(a).data for a in arrays)]), level=level)
    meta = {"level": level, "raw": size, "tree": len(tree), "crc": zlib.crc32(body)}
    return MAGIC + encode_frame({"format": FORMAT, "meta": meta}) + body


def decode(data: bytes) -> Any:
    """The data of a file.

    Raises:
        CorruptFileError: the file is damaged or of another kind.
        UnsupportedFileError: a newer version wrote it.
        ValueError: unpacked it would be too large.
    """
    header, at = decode_header(data, magic=MAGIC, kind="file of stored data")
    match header["meta"]:
        case {"level": int(level), "raw": int(size), "tree": int(split), "crc": crc}:
            pass
        case _:
            raise CorruptFileError("its header lacks the sizes.")
    body = memoryview(data)[at:]
    # Checked before it is unpacked, so that zstd never sees damaged data.
    if zlib.crc32(body) != crc or not 0 <= split <= size:
        raise CorruptFileError("its body is damaged or cut off.")
    _check_size(size, split)  # before anything is allocated
    raw = decompress(body, size, level=level)
    arrays = _Arrays(memoryview(raw)[split:])
    try:
        found = _from_tree(json.loads(raw[:split]), arrays)
    # From forged files only: no JSON, a key that is a list, brackets without end, or a
    # shape that NumPy refuses.
    except (ValueError, TypeError, RecursionError) as e:
        raise CorruptFileError(f"its tree cannot be read: {e}") from e
    if arrays.rest:
        raise CorruptFileError("it holds more bytes than its arrays take.")
    return found


def _check_size(size: int, tree: int) -> None:
    """Refuse data that take too many bytes, with or without their arrays."""
    if size > _MOST_BYTES or tree > _MOST_TREE_BYTES:
        raise ValueError(
            f"the data take {size:,} bytes, {tree:,} of them without arrays; at most "
            f"{_MOST_BYTES:,} and {_MOST_TREE_BYTES:,} are allowed: turn lists of "
            "numbers into arrays, or save the data in pieces."
        )


def _to_tree(value: object, arrays: list[np.ndarray], place: str, depth: int) -> Any:
    """What JSON can hold of a value; the arrays in it are added to `arrays`."""
    if depth > _MOST_DEEP:
        raise ValueError(
            f"{place:.99}... lies over {_MOST_DEEP} deep, or the data holds itself."
        )
    into = lambda part, key: _to_tree(part, arrays, f"{place}[{key!r}]", depth + 1)
    # Exact types: a subclass, such as a named tuple or an ordered dict, would come back
    # as another type, so it is refused rather than changed.
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if isinstance(value, int) and kind is int:
        if value.bit_length() > _MOST_BITS:
            raise ValueError(f"{place} is a whole number of over {_MOST_BITS} bits.")
        return value
    if isinstance(value, complex) and kind is complex:
        return {"complex": [value.real, value.imag]}
    if isinstance(value, list) and kind is list:
        return [into(part, i) for i, part in enumerate(value)]
    if isinstance(value, tuple) and kind is tuple:
        return {"tuple": [into(part, i) for i, part in enumerate(value)]}
    if isinstance(value, dict) and kind is dict:
        return {"dict": [[into(k, "key"), into(v, k)] for k, v in value.items()]}
    if isinstance(value, bytes) and kind is bytes:
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(value)}
    is_array = isinstance(value, np.generic | np.ndarray | jax.Array)
    if not is_array or isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{place} is a {kind.__qualname__}: only dicts, lists, tuples, numbers, "
            "text, None, truth values, bytes and arrays can be stored."
        )
    # This waits for the device, and gathers an array that is sharded.
    array = np.asarray(value)
    code = code_of(array.dtype)
    if code is None:
        raise TypeError(f"{place} is an array of {array.dtype}, not of numbers.")
    # Not ascontiguousarray: that makes a () array one of (1,).
    arrays.append(np.asarray(array, DTYPES[code], order="C"))
    # NumPy's scalars keep their dtype this way; a Python number would lose float32.
    is_scalar = isinstance(value, np.generic)
    return {"scalar": code} if is_scalar else {"array": [code, list(array.shape)]}


def _from_tree(tree: Any, arrays: "_Arrays") -> Any:
    """Rebuild what `_to_tree` has split; its arrays are taken from `arrays`."""
    into = lambda part: _from_tree(part, arrays)
    match tree:
        case None | bool() | int() | float() | str():
            return tree
        case list():
            return [into(part) for part in tree]
        case {"dict": list(pairs)}:
            return {into(key): into(value) for key, value in pairs}
        case {"tuple": list(parts)}:
            return tuple(into(part) for part in parts)
        case {"complex": [float(real), float(imaginary)]}:
            return complex(real, imaginary)
        case {"bytes": length}:
            return arrays.take("u1", [length]).tobytes()
        case {"scalar": code}:
            return arrays.take(code, [])[()]
        case {"array": [code, list(shape)]}:
            return arrays.take(code, shape)
    raise CorruptFileError("it holds something unknown.")


class _Arrays:
    """Takes arrays off the bytes of all of them."""

    def __init__(self, rest: memoryview) -> None:
        self.rest = rest

    def take(self, code: Any, shape: list[Any]) -> np.ndarray:
        """The next array, of its own memory."""
        if code not in DTYPES or min(shape, default=0) < 0:
            raise CorruptFileError("it holds an array of an unknown kind.")
        nbytes = math.prod(shape) * DTYPES[code].itemsize
        if nbytes > len(self.rest):
            raise CorruptFileError("it holds fewer bytes than its arrays take.")
        piece, self.rest = self.rest[:nbytes], self.rest[nbytes:]
        return unshuffle(piece, DTYPES[code]).reshape(shape)
