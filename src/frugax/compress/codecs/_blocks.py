"""Arrays to the chunks of a file, by each of the codecs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ..arrays._mapped import release
from . import _lossless, _uniform as _quantised
from ._uniform import Step, to_values
from .trellis import _encode as _trellis_block
from .trellis._quantise import Lanes, Part, classify_runs, quantise

BLOCK = 1 << 22  # numbers in one chunk: at most 32 MiB decoded
# Lanes of the trellis that are coded side by side, at most: some 100 MB of work.
_MOST_LANES = 2048
# The bytes of a chunk, and the values that they stand for; None where some number is
# too large for the codec.
Blocks = Iterator[tuple[bytes, np.ndarray] | None]


def encode_lossless(
    array: np.ndarray, told: Callable[[int], object] = lambda _: None
) -> tuple[str, tuple[bytes, ...]]:
    """The exact coding of an array: codec and blocks, `"stored"` if none is shorter.

    Of several blocks it is always lossless, at worst 0.01% longer, so that writing one
    need not wait for the next.

    Args:
        array: what is coded.
        told: called with how many numbers are done.
    """
    found: list[bytes] = []
    for block in _lossless_blocks(array):
        found.append(block)
        told(min(array.size, len(found) * BLOCK))
    blocks = tuple(found)
    if len(blocks) > 1 or sum(map(len, blocks)) < array.nbytes:
        return "lossless", blocks
    return "stored", (array.tobytes(),) * len(blocks)


def count_lossless_bytes(array: np.ndarray) -> int:
    """How long the blocks of `encode_lossless` are; only one is in memory."""
    lengths = [len(block) for block in _lossless_blocks(array)]
    return sum(lengths) if len(lengths) > 1 else min(array.nbytes, sum(lengths))


def _lossless_blocks(array: np.ndarray) -> Iterator[bytes]:
    flat = array.reshape(-1)
    for i in range(0, len(flat), BLOCK):
        part = flat[i : i + BLOCK]
        yield _lossless.encode(part)
        release(part)


def trellis_parts(array: np.ndarray, step: Step) -> Iterator[Part]:
    """The chunks of an array, as `encode_trellis` codes them."""
    flat, row = array.reshape(-1), row_length(array.shape)
    numbers = numbers_per_chunk("trellis", array.shape)
    for first in range(0, len(flat), numbers):
        values = flat[first : first + numbers]
        lanes = Lanes.of_rows(len(values), row)
        yield Part(values, step, lanes, classify_runs(values, lanes))


def encode_trellis(parts: Iterable[Part]) -> Blocks:
    """Code chunks with the trellis; small neighbours side by side, which is quicker."""
    group: list[Part] = []
    for part in parts:
        lanes = sum(other.lanes.count for other in group) + part.lanes.count
        if group and lanes > _MOST_LANES:
            yield from _trellis_group(group)
            group = []
        group.append(part)
    yield from _trellis_group(group)


def _trellis_group(parts: Sequence[Part]) -> list[tuple[bytes, np.ndarray] | None]:
    quantised = quantise(parts)
    fit = [c for c in quantised if c is not None]
    blocks = iter(_trellis_block.encode(fit) if fit else ())
    return [
        None
        if coded is None
        else (next(blocks), to_values(coded.flat, part.step, part.values.dtype))
        for part, coded in zip(parts, quantised, strict=True)
    ]


def encode_uniform(array: np.ndarray, step: Step) -> Blocks:
    """Code an array with a uniform grid, chunk by chunk."""
    flat = array.reshape(-1)
    numbers = numbers_per_chunk("quantised", array.shape)
    for first in range(0, len(flat), numbers):
        levels = _quantised.to_levels(flat[first : first + numbers], step)
        if levels is None:
            yield None
        else:
            values = _quantised.to_values(levels, step, array.dtype)
            yield _quantised.encode(levels), values


def row_length(shape: tuple[int, ...]) -> int:
    """How many numbers are in a row, that is, share their first index."""
    return max(1, math.prod(shape[1:])) if len(shape) > 1 else 256


def numbers_per_chunk(codec: str, shape: tuple[int, ...]) -> int:
    """How many numbers are in each chunk but the last.

    At most `BLOCK`; whole rows with the trellis codec, whose classes are of rows.
    """
    row = row_length(shape)
    return BLOCK // row * row if codec == "trellis" and row <= BLOCK else BLOCK
