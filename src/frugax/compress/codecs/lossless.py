"""Lossless codec: byte planes, each by the coder that makes it short.

Byte i of every number forms plane i. The bits of a float are first rotated left by
one, so that the top byte is the whole exponent (of float32 and bfloat16) and the sign
joins the noise at the bottom: the exponent plane shrinks a lot, the mantissa planes
hardly at all. Where numbers repeat up to their signs, as in Fourier bases, they are
not rotated. NaN payloads, -0, infinities and subnormals are bits like any other.

A block has one part for every `PART` numbers, each coded by itself to follow weights
that change along a tensor: u8 layout (0 as they are, 1 rotated), then for each plane
from the lowest byte: u8 coder, u32 length, the bytes. Where the lower half of all bytes
of a float are noise, only the upper halves of the numbers are rotated and cut into
planes (layout 2), and the lower halves stand before them as they are in memory: that is
decoded a third faster.

References:
    Hershcovitch et al. 2024, arXiv:2411.05239 (ZipNN);
    Lindstrom & Isenburg 2006, IEEE TVCG 12(5) (fpzip, the rotation's ancestor).
"""

import struct
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import zstandard

from frugax.errors import CorruptFileError, UnsupportedFileError

from ._zstd import decompress_frame

PART = 1 << 18  # numbers; the planes of one part stay in a processor's cache
_PLANE = struct.Struct("<BI")
_RAW, _ZSTD, _TWO_VALUES = range(3)
_PLAIN, _ROTATED, _HALVES = range(3)
# Matches that zstd would find among random symbols cost more bits than they save. With
# a table of 64 candidates and no match under 7 bytes it finds hardly any: what remains
# is zstd's Huffman coder, 0.2% over zlib's (whose tables are for 32 KiB, not 128) and
# four times as fast to decode.
_HUFFMAN = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
)
# A sample shows whether there are real repeats. For weights of four published nets
# level 9 makes files 0.02% shorter in all than level 4 (0.7% for one of them), and
# takes up to 1.7 times as long to encode.
_REPEATS_LEVEL = 4
_SAMPLE = 1 << 16  # bytes
# A plane of which Huffman's code leaves less may still repeat where numbers do not.
_FEW_VALUES = 1 / 4


class _Coders(threading.local):
    """zstd's compressors of this thread: none may serve two at a time.

    Making one takes as long as coding ten thousand bytes.
    """

    def __init__(self) -> None:
        self.huffman = zstandard.ZstdCompressor(compression_params=_HUFFMAN)
        self.repeats = zstandard.ZstdCompressor(level=_REPEATS_LEVEL)


_CODERS = _Coders()
# By the bytes of a word: what moves it up in one twice as wide, and its lowest bit to
# the top. Vectors of x86 have products of 16 bits, and no shifts; an array without axes
# saves a conversion.
_UP = {n: np.array(1 << 8 * n, f"<u{2 * n}") for n in (1, 2, 4)}
_TOP = {n: np.array(1 << 8 * n - 1, f"<u{n}") for n in (1, 2, 4, 8)}
_ONE = {n: np.array(1, f"<u{n}") for n in (1, 2, 4, 8)}
# Moving the sign to the upper bytes costs a bit or two of a number there. Of the lowest
# byte it must save more than this share to be worth it.
_WORTH_THE_SIGN = 1 / 4


def encode(values: np.ndarray) -> bytes:
    """Code a flat array of any supported dtype exactly."""
    return b"".join(encode_parts(values))


def encode_parts(values: np.ndarray) -> Iterator[bytes]:
    """Code the parts of a flat array one by one."""
    bits = values.view(f"<u{_word_bytes(values.dtype)}")
    floats = _is_float(values.dtype)
    for i in range(0, len(bits), PART):
        yield _encode_part(bits[i : i + PART], floats=floats)


def decode(block: memoryview, dtype: "np.dtype[Any]", size: int) -> np.ndarray:
    """Return the flat array of `size` numbers that `encode` coded."""
    word = _word_bytes(dtype)
    count = size * (dtype.itemsize // word)
    # Allocate nothing before every part has shown bytes for its numbers.
    parts = list(_split(block, word, count))
    values = np.empty(size, dtype)
    bits = values.view(f"<u{word}")
    for i, (layout, low, planes) in enumerate(parts):
        part = bits[i * PART : (i + 1) * PART]
        columns = [_decode_plane(coder, plane, len(part)) for coder, plane in planes]
        if layout == _HALVES:
            high = np.empty(len(part), f"<u{word // 2}")
            _interleave(columns, high)
            _rotate_right(high)
            columns = [np.frombuffer(low, high.dtype), high]
        _interleave(columns, part)
        if layout == _ROTATED:
            _rotate_right(part)
    return values


def _interleave(columns: list[np.ndarray], words: np.ndarray) -> None:
    """Assemble words from their bytes, the lowest first."""
    # Pairs of bytes make 16-bit words, pairs of those 32-bit ones, and so on. These
    # operations are vectorised; a strided store to every fourth byte is not.
    while len(columns) > 1:
        up = _UP[columns[0].itemsize]
        joined: list[np.ndarray] = []
        for low, high in zip(columns[::2], columns[1::2], strict=True):
            both = words if len(columns) == 2 else np.empty(len(low), up.dtype)
            both[:] = high
            both *= up
            both |= low
            joined.append(both)
        columns = joined
    if columns[0] is not words:
        words[:] = columns[0]


def _split(
    block: memoryview, word: int, count: int
) -> Iterator[tuple[int, memoryview, list[tuple[int, memoryview]]]]:
    # Yield the layout, the lower halves and the coded planes of every part.
    start = 0
    for first in range(0, count, PART):
        if len(block) - start < 1:
            raise CorruptFileError("a block of byte planes is cut off.")
        layout, low, planes = block[start], block[:0], word
        if layout > (_HALVES if word > 2 else _ROTATED):
            raise UnsupportedFileError(
                f"byte planes have the layout {layout}, which this version does not "
                "know: update frugax."
            )
        start += 1
        if layout == _HALVES:
            planes //= 2
            low = block[start : start + planes * min(PART, count - first)]
            start += planes * min(PART, count - first)
        coded: list[tuple[int, memoryview]] = []
        for _ in range(planes):
            if len(block) - start < _PLANE.size:
                raise CorruptFileError("a block of byte planes is cut off.")
            coder, length = _PLANE.unpack_from(block, start)
            start += _PLANE.size
            coded.append((coder, block[start : start + length]))
            start += length
        yield layout, low, coded
    if start != len(block):
        raise CorruptFileError("a block of byte planes contradicts its own lengths.")


def _word_bytes(dtype: "np.dtype[Any]") -> int:
    """Return the bytes of one number; a complex number is two."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _is_float(dtype: "np.dtype[Any]") -> bool:
    # The floats of ml_dtypes are of kind "V"; rotating their bits does no harm.
    return dtype.kind in "fcV"


def _rotate_left(bits: np.ndarray) -> np.ndarray:
    one, rest = bits.dtype.type(1), bits.dtype.type(bits.dtype.itemsize * 8 - 1)
    return (bits << one) | (bits >> rest)


def _rotate_right(bits: np.ndarray) -> None:
    sign = bits * _TOP[bits.itemsize]
    bits >>= _ONE[bits.itemsize]
    bits |= sign


def _encode_part(bits: np.ndarray, *, floats: bool) -> bytes:
    if not floats or _repeats_without_sign(bits[:_SAMPLE]):
        return _join(_PLAIN, _encode_planes(bits))
    if bits.itemsize > 2:
        low, high = _halve(bits)
        if all(map(_is_noise, _byte_planes(low))):
            planes = _encode_planes(_rotate_left(high))
            return _join(_HALVES, [low.tobytes(), *planes])
    return _join(_ROTATED, _encode_planes(_rotate_left(bits)))


def _repeats_without_sign(sample: np.ndarray) -> bool:
    """Whether the lowest byte repeats, and not with the sign in it."""
    length = lambda words: len(_CODERS.repeats.compress(words.astype(np.uint8).data))
    saved = length(_rotate_left(sample)) - length(sample)
    return saved > _WORTH_THE_SIGN * len(sample)


def _is_noise(plane: np.ndarray) -> bool:
    for coder, part in (_CODERS.repeats, plane[:_SAMPLE]), (_CODERS.huffman, plane):
        if len(coder.compress(part.data)) < len(part):
            return False
    return True


def _join(layout: int, parts: Iterable[bytes]) -> bytes:
    return b"".join([bytes([layout]), *parts])


def _byte_planes(words: np.ndarray) -> list[np.ndarray]:
    """Return the bytes of words, the lowest first."""
    if words.itemsize == 1:
        return [words]
    return [plane for half in _halve(words) for plane in _byte_planes(half)]


def _halve(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Conversions are vectorised; copies of every second number are not.
    half = np.dtype(f"<u{words.itemsize // 2}")
    high = words >> words.dtype.type(8 * half.itemsize)
    return words.astype(half), high.astype(half)


def _encode_planes(words: np.ndarray) -> Iterator[bytes]:
    """Code the bytes of words, the lowest first."""
    is_noise = False
    for plane in _byte_planes(words):
        coded = _encode_plane(plane, above_noise=is_noise)
        is_noise = is_noise or coded[0] == _RAW
        yield coded


def _encode_plane(plane: np.ndarray, *, above_noise: bool) -> bytes:
    # Most planes show more than two values in their first few bytes.
    if len(set(plane[:32].tobytes())) <= 2:
        low, high = plane.min(), plane.max()
        if ((plane == low) | (plane == high)).all():
            # A Huffman code spends a whole bit on each byte: pack eight of them first.
            coder, packed = _encode_shortest(np.packbits(plane == high))
            block = bytes([low, high, coder]) + packed
            return _PLANE.pack(_TWO_VALUES, len(block)) + block
    coder, block = _encode_shortest(plane, above_noise=above_noise)
    return _PLANE.pack(coder, len(block)) + block


def _encode_shortest(
    plane: np.ndarray, *, above_noise: bool = False
) -> tuple[int, bytes]:
    """Return the coder that makes a plane shortest, and its bytes."""
    short = _CODERS.huffman.compress(plane.data)
    coded = [(_RAW, plane.tobytes()), (_ZSTD, short)]
    # Numbers whose lower bytes are noise do not repeat. Their exponents may, where each
    # column has few of its own.
    if not above_noise or len(short) < _FEW_VALUES * len(plane):
        sample = plane if len(plane) < 2 * _SAMPLE else plane[:_SAMPLE]
        repeated = _CODERS.repeats.compress(sample.data)
        if len(repeated) * len(plane) < len(short) * len(sample):
            if len(sample) < len(plane):
                repeated = _CODERS.repeats.compress(plane.data)
            coded.append((_ZSTD, repeated))
    return min(coded, key=lambda option: len(option[1]))


def _decode_plane(coder: int, block: memoryview, count: int) -> np.ndarray:
    if coder == _TWO_VALUES:
        if len(block) < 3:
            raise CorruptFileError("a byte plane of two values is cut off.")
        low, high, inner = block[:3]
        packed = _decode_bytes(inner, block[3:], -(-count // 8))
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=count)
        return np.array([low, high], np.uint8)[bits]
    return np.frombuffer(_decode_bytes(coder, block, count), np.uint8)


def _decode_bytes(coder: int, block: memoryview, count: int) -> bytes | memoryview:
    if coder == _RAW:
        plain = block
    elif coder == _ZSTD:
        plain = decompress_frame(block, max_bytes=count)
    else:
        raise UnsupportedFileError(
            f"a byte plane has the coder {coder}, which this version does not know: "
            "update frugax."
        )
    if len(plain) != count:
        raise CorruptFileError(f"a byte plane has {len(plain)} bytes, not {count}.")
    return plain
