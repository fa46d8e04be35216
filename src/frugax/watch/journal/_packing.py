"""Arrays as bytes: shuffled, sometimes xored in time, packed with zstd.

Numbers wider than a byte are byte-shuffled: all first bytes, then all second bytes, and
so on, which packs better. Floating ones may first be xored, record by record, with the
record before: what did not change becomes zero.

A packed array says in its file how large it is; that is checked, against what it is
packed into and against the caps, before anything of that size is allocated.
"""

import dataclasses
import math
import threading
from typing import Any, Literal, TypeAlias

import numpy as np
import zstandard

from frugax.errors import CorruptFileError

from ._dtypes import DTYPES, bits_of

Codec: TypeAlias = Literal["plain", "xor"]
Buffer: TypeAlias = bytes | memoryview
LEVEL = 3
# For arrays of a journal: level 1, and nothing shorter than 7 bytes is taken for a
# repetition. Grids come out smaller than at level 3, and sooner; random walks of floats
# come out 0.2% larger (benchmarks/watch_storage.py).
_QUICK = "quick"


# A compressor costs more to make than a block to compress; one serves one thread.
_compressors = threading.local()


def compress(raw: Buffer | np.ndarray, *, level: int = LEVEL) -> bytes:
    """One zstd frame; the bytes as they are for level 0."""
    return bytes(raw) if level == 0 else _compressed(raw, level)


def _compressed(raw: Buffer | np.ndarray, level: int | Literal["quick"]) -> bytes:
    made: dict[int | str, zstandard.ZstdCompressor]
    made = _compressors.__dict__.setdefault("made", {})
    if level not in made:
        kind = zstandard.ZstdCompressionParameters
        made[level] = (
            zstandard.ZstdCompressor(compression_params=kind.from_level(1, min_match=7))
            if level == _QUICK
            else zstandard.ZstdCompressor(level=level)
        )
    buffer: Any = raw  # an array is one too, which its type does not say
    return made[level].compress(buffer)


def decompress(packed: Buffer, length: int, *, level: int = LEVEL) -> bytes:
    """What `compress` was given, if that is `length` bytes.

    Raises:
        CorruptFileError: it is not, or cannot be unpacked.
    """
    if level == 0:
        if len(packed) != length:
            raise CorruptFileError(f"{len(packed)} bytes stand where {length} belong.")
        return bytes(packed)
    try:
        # The frame's own word for its size is what the decompressor allocates.
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


def shuffle(array: np.ndarray) -> np.ndarray:
    """The bytes of an array in C order, plane by plane: `(itemsize, n)` or `(n,)`."""
    itemsize = array.dtype.itemsize
    flat = array.reshape(-1)
    if itemsize == 1:
        return flat.view(np.uint8)
    if itemsize not in (2, 4, 8):
        return np.ascontiguousarray(flat.view(np.uint8).reshape(-1, itemsize).T)
    # Shifting whole numbers takes half the time of gathering every so many bytes.
    numbers = flat.view(f"<u{itemsize}")
    planes = np.empty((itemsize, flat.size), np.uint8)
    for i, plane in enumerate(planes):
        np.copyto(plane, numbers >> (8 * i), casting="unsafe")
    return planes


def unshuffle(raw: Buffer, dtype: np.dtype) -> np.ndarray:
    """The array that was shuffled, `(n,)`, its own copy.

    Raises:
        CorruptFileError: a truth value is neither 0 nor 1.
    """
    planes = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1)
    if dtype == np.bool_ and planes.size and planes.max() > 1:
        raise CorruptFileError("it holds a truth value that is neither 0 nor 1.")
    return planes.T.copy().view(dtype).reshape(-1)


def pack(array: np.ndarray, code: str, codec: Codec) -> bytes:
    """Pack an array.

    Args:
        array: `(records, ...)`, in C order, of the dtype that `code` names.
        code: the dtype's name in the file.
        codec: "xor" only where `bits_of(code)` is something.
    """
    bits = bits_of(code)
    if codec == "xor" and bits is not None:
        plain = array.view(bits)
        array = plain.copy()
        array[1:] ^= plain[:-1]
    return _compressed(shuffle(array), _QUICK)


def pack_smallest(array: np.ndarray, code: str) -> tuple[Codec, bytes]:
    """Pack an array both ways, if there are two; which one is smaller, and it."""
    plain = pack(array, code, "plain")
    if bits_of(code) is None or len(array) < 2:
        return "plain", plain
    xored = pack(array, code, "xor")
    return ("xor", xored) if len(xored) < len(plain) else ("plain", plain)


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """An array that lies packed until it is asked for.

    Attributes:
        body: its zstd frame.
        code: name of its dtype.
        shape: its shape; the first axis counts records.
        codec: how it was packed.
    """

    body: Buffer
    code: str
    shape: tuple[int, ...]
    codec: Codec

    def unpack(self) -> np.ndarray:
        """The array, its own copy.

        Raises:
            CorruptFileError: it cannot be unpacked, which a damaged file cannot cause,
                since its checksums were right, but a forged one can.
        """
        dtype = DTYPES[self.code]
        raw = decompress(self.body, math.prod(self.shape) * dtype.itemsize)
        bits = bits_of(self.code)
        if self.codec == "plain" or bits is None:
            return unshuffle(raw, dtype).reshape(self.shape)
        array = unshuffle(raw, bits).reshape(self.shape)
        np.bitwise_xor.accumulate(array, axis=0, out=array)
        return array.view(dtype)
