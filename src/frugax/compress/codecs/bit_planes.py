"""Progressive codec: quantised weights in bit planes, of which any prefix decodes.

A level is a sign and the digits of its magnitude in base 2. The first layer has the
highest digits of every level; each later layer has one digit more, and the sign of
levels that were zero until then. A prefix of the layers is a coarser quantiser, whose
cells the next layer halves: at high rate that costs nothing against a quantiser made
for the prefix (Equitz & Cover 1991, IEEE Trans. Information Theory 37(2)), and about
0.1 to 0.2 dB at few bits, as the cell of zero is twice as wide as the others.

One more layer may hold the residual down to the exact bits of the weights.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError

from . import lossless, rans
from .uniform import MAX_LEVEL, MIN_STEP, Step, compute_type, to_values

# Bit planes of one tensor; levels have 52 bits at most.
MAX_PLANES = 52
# Bytes of the levels that become non-zero, before the digits of the others.
_LAYER_HEAD = struct.Struct("<I")


def count_planes(rms: float, step: Step) -> int:
    """Return the number of planes whose first layer has a step of at most `rms`."""
    return min(MAX_PLANES, max(0, math.floor(math.log2(rms / step.size))) + 1)


def can_split(step: Step) -> bool:
    """Whether half of `step`, the unit of all layers but the last, is a step too."""
    return step.exponent > MIN_STEP.exponent


def exceeds_range(levels: np.ndarray, dtype: "np.dtype[Any]") -> bool:
    """Whether some level is too large to be split."""
    return int(np.abs(levels).max()) > _max_level(dtype)


def estimate_bytes(levels: np.ndarray, planes: int) -> float:
    """Estimate the length of `encode_layers(levels, planes)` without coding."""
    magnitude, negative = np.abs(levels), levels < 0
    first = magnitude >> (planes - 1)
    total = rans.estimate_bytes(np.where(negative, -first, first))
    digits = np.frexp(magnitude.astype(np.float64))[1]  # exact: below 2^52
    by_sign = [np.bincount(digits[negative == sign], minlength=64) for sign in (0, 1)]
    # Levels of `length` digits become non-zero in the layer that reveals that digit.
    for length in range(planes - 1, 0, -1):
        zeros = int(sum(counts[:length].sum() for counts in by_sign))
        plus, minus = (int(counts[length]) for counts in by_sign)
        coded = zeros + plus + minus
        if coded:
            total += rans.estimate_bytes(np.repeat([-1, 0, 1], [minus, zeros, plus]))
        total += _LAYER_HEAD.size + (levels.size - coded) / 8
    return total


def encode_layers(levels: np.ndarray, planes: int) -> list[bytes]:
    """Code flat int64 levels, at least one, as one block a layer."""
    magnitude, negative = np.abs(levels), levels < 0
    prefix = magnitude >> (planes - 1)
    blocks = [rans.encode(np.where(negative, -prefix, prefix))]
    for shift in range(planes - 2, -1, -1):
        zero, prefix = prefix == 0, magnitude >> shift
        fresh = np.where(negative, -prefix, prefix)[zero]
        coded = rans.encode(fresh) if fresh.size else b""
        # Digits after the first are close to uniform: raw bits cost them nothing.
        digits = np.packbits((prefix[~zero] & 1).astype(np.uint8)).tobytes()
        blocks.append(_LAYER_HEAD.pack(len(coded)) + coded + digits)
    return blocks


def decode(
    blocks: Sequence[memoryview],
    planes: int,
    step: Step,
    dtype: "np.dtype[Any]",
    size: int,
) -> np.ndarray:
    """Return the values of the first layer and any number of layers after it."""
    *_, (levels, shift) = _decode_levels(blocks, planes, dtype, size)
    values = reconstruct(levels, shift, step, dtype)
    if len(blocks) > planes:
        values = _add_residual(values, blocks[-1])
    return values


def decode_each_layer(
    blocks: Sequence[memoryview],
    planes: int,
    step: Step,
    dtype: "np.dtype[Any]",
    size: int,
) -> Iterator[np.ndarray]:
    """Yield the values after each layer; the last ones are those of `decode`."""
    values = np.zeros(0, dtype)
    for levels, shift in _decode_levels(blocks, planes, dtype, size):
        values = reconstruct(levels, shift, step, dtype)
        yield values
    if len(blocks) > planes:
        yield _add_residual(values, blocks[-1])


def reconstruct(
    levels: np.ndarray, shift: int, step: Step, dtype: "np.dtype[Any]"
) -> np.ndarray:
    """Decode levels to mid-cell values, where their last `shift` digits are unknown."""
    if not shift:
        return to_values(levels, step, dtype)
    # The middle of a cell is a multiple of half a step.
    half = Step(step.mantissa, step.exponent - 1)
    middle = np.sign(levels) * ((1 << shift) - 1)
    return to_values((levels << (shift + 1)) + middle, half, dtype)


def encode_residual(original: np.ndarray, decoded: np.ndarray) -> bytes:
    """Code the difference that turns decoded values into the originals, bit by bit."""
    bits = 8 * original.dtype.itemsize
    # Unsigned, so the difference wraps; zigzag makes small negative ones small codes.
    gap = _order_preserving_bits(original) - _order_preserving_bits(decoded)
    one = gap.dtype.type(1)
    sign = gap.dtype.type(0) - (gap >> gap.dtype.type(bits - 1))
    return lossless.encode((gap << one) ^ sign)


def _add_residual(decoded: np.ndarray, block: memoryview) -> np.ndarray:
    """Invert `encode_residual`."""
    keys = _order_preserving_bits(decoded)
    zigzag = lossless.decode(block, keys.dtype, keys.size)
    one = keys.dtype.type(1)
    keys = keys + ((zigzag >> one) ^ (keys.dtype.type(0) - (zigzag & one)))
    top = keys.dtype.type(1 << (8 * decoded.dtype.itemsize - 1))
    return np.where(keys & top, keys ^ top, ~keys).view(decoded.dtype)


def _order_preserving_bits(values: np.ndarray) -> np.ndarray:
    """Return the bits of floats as unsigned integers in the order of the floats."""
    bits = values.view(f"<u{values.dtype.itemsize}")
    top = bits.dtype.type(1 << (8 * values.dtype.itemsize - 1))
    return np.where(bits & top, ~bits, bits | top)


def _decode_levels(
    blocks: Sequence[memoryview], planes: int, dtype: "np.dtype[Any]", size: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the levels after each layer, and how many of their digits are unknown."""
    levels = _decode_first_layer(blocks[0], planes - 1, dtype, size)
    yield levels, planes - 1
    for shift, block in zip(range(planes - 2, -1, -1), blocks[1:planes], strict=False):
        levels = _refine(levels, block)
        yield levels, shift


def _decode_first_layer(
    block: memoryview, shift: int, dtype: "np.dtype[Any]", size: int
) -> np.ndarray:
    levels = rans.decode(block, size)
    if np.abs(levels).max() > _max_level(dtype) >> shift:
        raise CorruptFileError("a level is too large.")
    return levels


def _refine(levels: np.ndarray, block: memoryview) -> np.ndarray:
    # Append one digit to every level.
    zero = levels == 0
    zeros = int(zero.sum())
    if len(block) < _LAYER_HEAD.size:
        raise CorruptFileError("a layer is cut off.")
    (coded,) = _LAYER_HEAD.unpack_from(block)
    rest = block[_LAYER_HEAD.size + coded :]
    digit_bytes = -(-(levels.size - zeros) // 8)
    if coded > len(block) - _LAYER_HEAD.size or len(rest) != digit_bytes:
        raise CorruptFileError("a layer contradicts its own head.")
    refined = np.empty_like(levels)
    if zeros:
        fresh = rans.decode(block[_LAYER_HEAD.size : _LAYER_HEAD.size + coded], zeros)
        if np.abs(fresh).max() > 1:
            raise CorruptFileError("a digit is neither 0 nor 1.")
        refined[zero] = fresh
    elif coded:
        raise CorruptFileError("a layer contradicts its own head.")
    digits = np.unpackbits(np.frombuffer(rest, np.uint8), count=levels.size - zeros)
    known = levels[~zero]
    refined[~zero] = 2 * known + np.sign(known) * digits
    return refined


def _max_level(dtype: "np.dtype[Any]") -> int:
    # Half of the exact range, as coarser layers are multiples of half steps.
    return MAX_LEVEL[np.dtype(compute_type(dtype)).itemsize] // 2
