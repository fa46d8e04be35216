"""The lossless codec: byte planes, each coded by whatever makes it shortest.

The bits of a float are rotated left by one, so that the top byte is the whole exponent
(of float32 and bfloat16) and the sign joins the noise at the bottom. Byte i of every
number then makes plane i: the exponent plane shrinks a lot, the mantissa planes
hardly at all. NaN payloads, -0, infinities and subnormals are bits like any other.

A block is, for each plane from the lowest byte: u8 coder, u32 length, the bytes.

References:
    Hershcovitch et al. 2024, arXiv:2411.05239 (ZipNN);
    Lindstrom & Isenburg 2006, IEEE TVCG 12(5) (fpzip, the rotation's ancestor).
"""

import struct
from typing import Any

import numpy as np
import zstandard

from frugax.errors import CorruptFileError, UnsupportedFileError

from . import _rans
from ._zstd import unzstd

_PLANE = struct.Struct("<BI")
_RAW, _ZSTD, _RANS = 0, 1, 2
# Higher levels cost ten times the time for 1% on weights (research: zstd -3 to -19).
_ZSTD_LEVEL = 3


def encode(values: np.ndarray) -> bytes:
    """Code a flat array of any supported dtype exactly."""
    return b"".join(map(_encode_plane, _planes(values)))


def decode(block: memoryview, dtype: "np.dtype[Any]", size: int) -> np.ndarray:
    """Give back the flat array of `size` numbers that `encode` coded.

    Raises:
        CorruptFileError: this is no such block.
        UnsupportedFileError: a plane has an unknown coder.
    """
    word = _word_bytes(dtype)
    count = size * (dtype.itemsize // word)
    planes = np.empty((count, word), np.uint8)
    at = 0
    for i in range(word):
        if len(block) - at < _PLANE.size:
            raise CorruptFileError("a block of byte planes is cut off.")
        coder, length = _PLANE.unpack_from(block, at)
        at += _PLANE.size
        planes[:, i] = _decode_plane(coder, block[at : at + length], count)
        at += length
    if at != len(block):
        raise CorruptFileError("a block of byte planes contradicts its own lengths.")
    bits = planes.view(f"<u{word}").reshape(-1)
    return (_rotate_right(bits) if _is_float(dtype) else bits).view(dtype)


def _planes(values: np.ndarray) -> list[np.ndarray]:
    word = _word_bytes(values.dtype)
    bits = values.view(f"<u{word}")
    if _is_float(values.dtype):
        bits = _rotate_left(bits)
    columns = bits.view(np.uint8).reshape(-1, word)
    return [np.ascontiguousarray(columns[:, i]) for i in range(word)]


def _word_bytes(dtype: "np.dtype[Any]") -> int:
    """Bytes of one number; a complex one is two."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _is_float(dtype: "np.dtype[Any]") -> bool:
    # The floats of ml_dtypes are of kind "V"; rotating their bits does no harm.
    return dtype.kind in "fcV"


def _rotate_left(bits: np.ndarray) -> np.ndarray:
    one, rest = bits.dtype.type(1), bits.dtype.type(bits.dtype.itemsize * 8 - 1)
    return (bits << one) | (bits >> rest)


def _rotate_right(bits: np.ndarray) -> np.ndarray:
    one, rest = bits.dtype.type(1), bits.dtype.type(bits.dtype.itemsize * 8 - 1)
    return (bits >> one) | (bits << rest)


def _encode_plane(plane: np.ndarray) -> bytes:
    raw = plane.tobytes()
    coded = [(len(raw), _RAW, raw)]
    # Not worth coding: noise. Repeats that entropy does not see are left to zstd.
    if _rans.encoded_bytes(plane.astype(np.int64)) < len(raw):
        block = _rans.encode(plane.astype(np.int64))
        coded.append((len(block), _RANS, block))
    block = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw)
    coded.append((len(block), _ZSTD, block))
    length, coder, block = min(coded, key=lambda option: option[:2])
    return _PLANE.pack(coder, length) + block


def _decode_plane(coder: int, block: memoryview, count: int) -> np.ndarray:
    if coder == _RANS:
        numbers = _rans.decode(block, count)
        if numbers.min() < 0 or numbers.max() > 255:
            raise CorruptFileError("a byte plane holds more than bytes.")
        return numbers.astype(np.uint8)
    if coder not in (_RAW, _ZSTD):
        raise UnsupportedFileError(
            f"a byte plane has the coder {coder}, which this version does not know: "
            "update frugax."
        )
    plain = unzstd(bytes(block), most=count) if coder == _ZSTD else block
    if len(plain) != count:
        raise CorruptFileError(f"a byte plane has {len(plain)} bytes, not {count}.")
    return np.frombuffer(plain, np.uint8)
