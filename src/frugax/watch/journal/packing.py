"""Columns of a journal and their encoding: byte shuffle, optional XOR, then zstd.

Numbers wider than a byte are byte-shuffled (all first bytes, then all second bytes, and
so on), as Blosc and HDF5 do, because bytes of equal significance resemble each other.
Floating-point numbers may first be XORed with the previous record: unchanged values
become zero.

A packed array carries its unpacked size in the file. That size is checked against the
shape and the limits before anything is allocated.
"""

import dataclasses
import math
import threading
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
import zstandard
from jaxtyping import Bool, Shaped, UInt8

from frugax.errors import CorruptFileError

Codec: TypeAlias = Literal["plain", "xor"]
Buffer: TypeAlias = bytes | memoryview

# The dtypes that a file can hold, by their names in it. All are little-endian.
_NUMPY_NAMES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
_NUMPY_NAMES += ("f2", "f4", "f8", "c8", "c16")
# One or two bytes wide; NumPy alone does not know these.
_ML_NAMES = ("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz")
_ML_NAMES += ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_ML_NAMES += ("float8_e8m0fnu",)
DTYPES = {name: np.dtype(f"<{name}") for name in _NUMPY_NAMES} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_NAMES
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
# Narrower than a byte: each value is stored as one that holds it exactly.
_CODES |= {np.dtype(getattr(ml_dtypes, name)): "i1" for name in ("int2", "int4")}
_CODES |= {np.dtype(getattr(ml_dtypes, name)): "u1" for name in ("uint2", "uint4")}
_NARROW_FLOATS = ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
_CODES |= {np.dtype(getattr(ml_dtypes, name)): "float8_e4m3" for name in _NARROW_FLOATS}
# Integers as wide as the floating-point dtypes for which XOR along time pays.
_BITS = {"f2": "<u2", "bfloat16": "<u2", "f4": "<u4", "f8": "<u8"}

# zstd level 1 with a minimal match of 7 bytes. Grids come out smaller than at level 3,
# and faster; random walks of floats come out 0.2 % larger (`python -m benchmarks.watch
# storage`), numbers of training steps 1 to 3 %.
_LEVEL, _MIN_MATCH = 1, 7
# Creating a compressor costs more than compressing a block, so each is kept. zstd
# contexts are not thread-safe, hence one per thread.
_kept = threading.local()


def code_of(dtype: np.dtype) -> str | None:
    """Return the name of a dtype in a file, or None if no file can hold it."""
    return _CODES.get(dtype.newbyteorder("<"))


def is_ml_dtype(dtype: np.dtype) -> bool:
    """Whether only ml_dtypes knows the dtype, so that other formats cannot hold it."""
    return _CODES.get(dtype) in _ML_NAMES


def compress(raw: Buffer | np.ndarray) -> bytes:
    """Compress bytes into one zstd frame."""
    if not hasattr(_kept, "compressor"):
        options = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, min_match=_MIN_MATCH
        )
        _kept.compressor = zstandard.ZstdCompressor(compression_params=options)
    buffer: Any = raw  # arrays are buffers too, which zstandard's stubs do not say
    return _kept.compressor.compress(buffer)


def decompress(packed: Buffer, length: int) -> bytes:
    """Undo `compress`, where the result must have `length` bytes."""
    try:
        # The decompressor allocates the size that the frame itself claims, so that
        # claim is checked first.
        size = zstandard.frame_content_size(packed)
        if size == length:
            unpacked = zstandard.ZstdDecompressor().decompress(
                packed, allow_extra_data=False
            )
            if len(unpacked) == length:
                return unpacked
    except zstandard.ZstdError as e:
        raise CorruptFileError(f"it cannot be unpacked: {e}") from e
    raise CorruptFileError(f"it unpacks to {size} bytes where {length} belong.")


def shuffle(array: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Reorder the bytes of an array plane by plane: `(itemsize, n)`."""
    flat = array.reshape(-1).view(np.uint8)
    # Shifts of integers take half the time for a megabyte of float32, and ten times as
    # long for the 64 numbers of a block.
    return np.ascontiguousarray(flat.reshape(-1, array.dtype.itemsize).T)


def unshuffle(raw: Buffer, dtype: np.dtype) -> Shaped[np.ndarray, " n"]:
    """Undo `shuffle` into a new array."""
    planes = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1)
    # NumPy assumes that booleans are 0 or 1; other bytes would break comparisons.
    if dtype == np.bool_ and planes.size and planes.max() > 1:
        raise CorruptFileError("it holds a truth value that is neither 0 nor 1.")
    return planes.T.copy().view(dtype).reshape(-1)


def pack(array: Shaped[np.ndarray, "records ..."], code: str, codec: Codec) -> bytes:
    """Pack a contiguous array of the dtype that `code` names."""
    if codec == "xor" and code in _BITS:
        plain = array.view(_BITS[code])
        # Copied, because `array` may belong to the caller or to the open block.
        array = plain.copy()
        array[1:] ^= plain[:-1]
    return compress(shuffle(array))


def pack_smallest(
    array: Shaped[np.ndarray, "records ..."], code: str
) -> tuple[Codec, bytes]:
    """Pack an array with each codec that applies; return the smaller result."""
    # XOR pays: without it journals of slowly changing floats take 7 to 32 % more bytes
    # (programs "reductions", "lanes" and "frames" of `tests/golden`).
    plain = pack(array, code, "plain")
    if code in _BITS and len(array) > 1:
        xored = pack(array, code, "xor")
        if len(xored) < len(plain):
            return "xor", xored
    return "plain", plain


@dataclasses.dataclass(frozen=True, slots=True)
class PackedArray:
    """An array that stays packed until its values are needed.

    Attributes:
        body: the zstd frame.
        code: the name of the dtype.
        shape: the shape; the first axis counts records.
        codec: the codec that packed it.
    """

    body: Buffer
    code: str
    shape: tuple[int, ...]
    codec: Codec

    def unpack(self) -> Shaped[np.ndarray, "..."]:
        """Unpack into a new array."""
        dtype = DTYPES[self.code]
        raw = decompress(self.body, math.prod(self.shape) * dtype.itemsize)
        if self.codec == "plain" or self.code not in _BITS:
            return unshuffle(raw, dtype).reshape(self.shape)
        array = unshuffle(raw, np.dtype(_BITS[self.code])).reshape(self.shape)
        # Record k was stored as k XOR k-1, so a running XOR restores it.
        np.bitwise_xor.accumulate(array, axis=0, out=array)
        return array.view(dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """The values of one name in consecutive records.

    Attributes:
        present: which of the records have a value.
        stored: the values of those, `(count, ...)`; arrays stay packed until needed.
        kept: how many of the stored values count; None for all.
    """

    present: Bool[np.ndarray, " records"]
    stored: Shaped[np.ndarray, "..."] | PackedArray
    kept: int | None = None

    def __len__(self) -> int:
        return int(self.stored.shape[0]) if self.kept is None else self.kept

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's value."""
        return tuple(self.stored.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        if isinstance(self.stored, PackedArray):
            return DTYPES[self.stored.code]
        return self.stored.dtype

    @property
    def nbytes(self) -> int:
        """The unpacked size of the values."""
        return len(self) * math.prod(self.shape) * self.dtype.itemsize

    @property
    def values(self) -> Shaped[np.ndarray, "count ..."]:
        """The values of the records that have one; unpacked at each access."""
        if isinstance(self.stored, PackedArray):
            return self.stored.unpack()[: len(self)]
        return self.stored[: len(self)]

    def head(self, n: int) -> "Column":
        """Return the column of the first `n` records."""
        present = self.present[:n]
        return Column(present, self.stored, int(present.sum()))
