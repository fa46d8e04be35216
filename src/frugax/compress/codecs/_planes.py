"""The progressive codec: levels by their binary digits, the highest ones first.

A level is a sign and the digits of its magnitude in base 2. The first layer has the
highest digits of every level; each layer after it has one digit more, and the sign of
what was zero until then. A prefix of the layers is a coarser quantiser, whose cells
are halved by the next layer: at high rate that costs nothing beside a quantiser made
for the prefix (Equitz & Cover 1991, IEEE Trans. Information Theory 37(2)), and about
0.1 to 0.2 dB at few bits, as zero's cell is twice as wide as the others.

A layer after those may have what is left to the very bits of the weights.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError

from . import _lossless, _rans
from ._uniform import LEAST_STEP, MOST_LEVEL, Step, compute_type, to_values

# Bit planes of one tensor; levels have 52 bits at most.
MOST_PLANES = 52
_CODED = struct.Struct("<I")  # bytes of what became non-zero, before the digits


def count_planes(rms: float, step: Step) -> int:
    """How many planes leave a first layer with a step of at most the deviation."""
    return min(MOST_PLANES, max(0, math.floor(math.log2(rms / step.size))) + 1)


def fits(step: Step) -> bool:
    """Whether half a step, which all layers but the last are told in, is one too."""
    return step.exponent > LEAST_STEP.exponent


def estimate_layer_bytes(levels: np.ndarray, planes: int) -> float:
    """About how long the layers of `split(levels, planes)` are, without coding."""
    magnitude, negative = np.abs(levels), levels < 0
    now = magnitude >> (planes - 1)
    found = _rans.estimate_bytes(np.where(negative, -now, now))
    digits = np.frexp(magnitude.astype(np.float64))[1]  # exact: below 2^52
    of_sign = [np.bincount(digits[negative == sign], minlength=64) for sign in (0, 1)]
    for known in range(planes - 1, 0, -1):  # numbers of so many digits become non-zero
        zeros = int(sum(counts[:known].sum() for counts in of_sign))
        plus, minus = (int(counts[known]) for counts in of_sign)
        among = zeros + plus + minus
        if among:
            found += _rans.estimate_bytes(np.repeat([-1, 0, 1], [minus, zeros, plus]))
        found += _CODED.size + (levels.size - among) / 8
    return found


def split(levels: np.ndarray, planes: int) -> list[bytes]:
    """The layers of flat int64 levels, at least one of them."""
    magnitude, negative = np.abs(levels), levels < 0
    now = magnitude >> (planes - 1)
    blocks = [_rans.encode(np.where(negative, -now, now))]
    for shift in range(planes - 2, -1, -1):
        zero, now = now == 0, magnitude >> shift
        fresh = np.where(negative, -now, now)[zero]
        coded = _rans.encode(fresh) if fresh.size else b""
        digits = np.packbits((now[~zero] & 1).astype(np.uint8)).tobytes()
        blocks.append(_CODED.pack(len(coded)) + coded + digits)
    return blocks


def decode(
    blocks: Sequence[memoryview],
    planes: int,
    step: Step,
    dtype: "np.dtype[Any]",
    size: int,
) -> np.ndarray:
    """The values that some layers stand for, the first and others after it.

    Raises:
        CorruptFileError: they are no such layers.
        UnsupportedFileError: one uses a coder of a newer version.
    """
    *_, (levels, shift) = _digits(blocks, planes, dtype, size)
    values = reconstruct(levels, shift, step, dtype)
    return whole(values, blocks[-1]) if len(blocks) > planes else values


def decode_each_layer(
    blocks: Sequence[memoryview],
    planes: int,
    step: Step,
    dtype: "np.dtype[Any]",
    size: int,
) -> Iterator[np.ndarray]:
    """The values as each layer after the other is read, as `decode` gives the last.

    Raises:
        CorruptFileError: they are no such layers.
        UnsupportedFileError: one uses a coder of a newer version.
    """
    values = np.zeros(0, dtype)
    for levels, shift in _digits(blocks, planes, dtype, size):
        values = reconstruct(levels, shift, step, dtype)
        yield values
    if len(blocks) > planes:
        yield whole(values, blocks[-1])


def _digits(
    blocks: Sequence[memoryview], planes: int, dtype: "np.dtype[Any]", size: int
) -> Iterator[tuple[np.ndarray, int]]:
    """The levels after each layer, and how many digits of them are not known."""
    levels = first(blocks[0], planes - 1, dtype, size)
    yield levels, planes - 1
    for shift, block in zip(range(planes - 2, -1, -1), blocks[1:planes], strict=False):
        levels = refined(levels, block)
        yield levels, shift


def first(
    block: memoryview, shift: int, dtype: "np.dtype[Any]", size: int
) -> np.ndarray:
    """The levels without their last `shift` digits, from the first layer.

    Raises:
        CorruptFileError: this is no such block.
    """
    found = _rans.decode(block, size)
    if np.abs(found).max() > _most(dtype) >> shift:
        raise CorruptFileError("a level is too large.")
    return found


def refined(levels: np.ndarray, block: memoryview) -> np.ndarray:
    """Levels with one digit more.

    Raises:
        CorruptFileError: this is no such block.
    """
    zero = levels == 0
    zeros = int(zero.sum())
    if len(block) < _CODED.size:
        raise CorruptFileError("a layer is cut off.")
    (coded,) = _CODED.unpack_from(block)
    rest = block[_CODED.size + coded :]
    if coded > len(block) - _CODED.size or len(rest) != -(-(levels.size - zeros) // 8):
        raise CorruptFileError("a layer contradicts its own head.")
    found = np.empty_like(levels)
    if zeros:
        fresh = _rans.decode(block[_CODED.size : _CODED.size + coded], zeros)
        if np.abs(fresh).max() > 1:
            raise CorruptFileError("a digit is neither 0 nor 1.")
        found[zero] = fresh
    elif coded:
        raise CorruptFileError("a layer contradicts its own head.")
    digits = np.unpackbits(np.frombuffer(rest, np.uint8), count=levels.size - zeros)
    before = levels[~zero]
    found[~zero] = 2 * before + np.sign(before) * digits
    return found


def reconstruct(
    levels: np.ndarray, shift: int, step: Step, dtype: "np.dtype[Any]"
) -> np.ndarray:
    """The values of levels whose last `shift` digits are not known: mid-cell."""
    if not shift:
        return to_values(levels, step, dtype)
    half = Step(step.mantissa, step.exponent - 1)
    middle = np.sign(levels) * ((1 << shift) - 1)
    return to_values((levels << (shift + 1)) + middle, half, dtype)


def encode_residual(original: np.ndarray, decoded: np.ndarray) -> bytes:
    """What turns decoded values into the original ones, bit for bit."""
    bits = 8 * original.dtype.itemsize
    gap = _ordered(original) - _ordered(decoded)  # unsigned: it wraps
    one = gap.dtype.type(1)
    sign = gap.dtype.type(0) - (gap >> gap.dtype.type(bits - 1))
    return _lossless.encode((gap << one) ^ sign)


def whole(decoded: np.ndarray, block: memoryview) -> np.ndarray:
    """The original values, from the decoded ones and what `encode_residual` gave.

    Raises:
        CorruptFileError: this is no such block.
        UnsupportedFileError: it uses a coder of a newer version.
    """
    keys = _ordered(decoded)
    folded = _lossless.decode(block, keys.dtype, keys.size)
    one = keys.dtype.type(1)
    keys = keys + ((folded >> one) ^ (keys.dtype.type(0) - (folded & one)))
    top = keys.dtype.type(1 << (8 * decoded.dtype.itemsize - 1))
    return np.where(keys & top, keys ^ top, ~keys).view(decoded.dtype)


def _ordered(values: np.ndarray) -> np.ndarray:
    """The bits of floats as whole numbers in the floats' own order."""
    bits = values.view(f"<u{values.dtype.itemsize}")
    top = bits.dtype.type(1 << (8 * values.dtype.itemsize - 1))
    return np.where(bits & top, ~bits, bits | top)


def _most(dtype: "np.dtype[Any]") -> int:
    # Half of what is exact, as coarser layers are told in half steps.
    return MOST_LEVEL[np.dtype(compute_type(dtype)).itemsize] // 2


def exceeds_range(levels: np.ndarray, dtype: "np.dtype[Any]") -> bool:
    """Whether some level cannot be split."""
    return int(np.abs(levels).max()) > _most(dtype)
