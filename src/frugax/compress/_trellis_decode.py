"""The trellis codec's blocks, read: checked part by part, then decoded many at a time.

Layout and writer are in `_trellis_block.py`, the decoder's loop in `_trellis_walk.py`.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError

from ._quantised import MOST_LEVEL, Step, times, working_type
from ._trellis_block import HEADER
from ._trellis_entries import FAR
from ._trellis_lanes import FARTHEST, LANE, Lanes
from ._trellis_tables import MOST_CLASSES, unpack
from ._trellis_walk import LOWEST, Packed, walk
from ._zstd import unzstd


def parse(block: memoryview, size: int) -> Packed:
    """Take a block of `size` numbers apart.

    Raises:
        CorruptFileError: this is no such block.
    """
    if len(block) < HEADER.size:
        raise CorruptFileError("a trellis-coded block is cut off.")
    head = HEADER.unpack_from(block)
    length, run, count, raw_bits, table_bytes, class_bytes, far_bytes, word_count = head
    # A longer lane than any writer makes could ask for minutes: each step of it is one
    # of NumPy's, for however few lanes.
    if not (1 <= run <= length <= 2 * LANE and length % run == 0):
        raise CorruptFileError("a trellis-coded block contradicts its own header.")
    lanes = Lanes(size, length, run)
    parts = [HEADER.size, table_bytes, class_bytes, far_bytes]
    parts += [4 * lanes.count, 2 * word_count, (raw_bits * size + 7) // 8]
    if sum(parts) != len(block) or not 1 <= count <= MOST_CLASSES:
        raise CorruptFileError("a trellis-coded block contradicts its own header.")
    at = np.cumsum(parts)
    pieces = [block[a:b] for a, b in itertools.pairwise(at)]
    packed = unzstd(bytes(pieces[0]), most=count * 600)
    tables = unpack(packed, classes=count, raw_bits=raw_bits)
    classes = np.zeros(lanes.runs, np.uint8)
    if class_bytes:
        plain = unzstd(bytes(pieces[1]), most=lanes.runs)
        classes = np.frombuffer(plain, np.uint8)
    if len(classes) != lanes.runs or classes.max() >= count:
        raise CorruptFileError("a trellis-coded block has damaged classes.")
    far = np.zeros(0, np.int32)
    if far_bytes:
        plain = unzstd(bytes(pieces[2]), most=4 * size)
        if len(plain) % 4:
            raise CorruptFileError("a trellis-coded block has a damaged list.")
        far = np.frombuffer(plain, "<i4").astype(np.int32)
    states = np.frombuffer(pieces[3], "<u4").astype(np.uint32)
    if states.min() < LOWEST:
        raise CorruptFileError("a trellis-coded block has a damaged state.")
    words = np.frombuffer(pieces[4], "<u2")
    return Packed(lanes, tables, classes, states, words, far, pieces[5])


def fill(blocks: Sequence[Packed], out: Sequence[np.ndarray]) -> Iterator[None]:
    """Decode the levels of each block, all at once; the next is sound at each turn.

    Args:
        blocks: some.
        out: where the levels of each go, flat floats of 32 bits or more.

    Raises:
        CorruptFileError: the block whose turn it is does not hold together.
    """
    for block, levels, sound in zip(blocks, out, walk(blocks, out), strict=True):
        if not sound:
            raise CorruptFileError(
                "a trellis-coded block does not end where it should."
            )
        _complete(block, levels)
        yield


def decode(
    block: memoryview, step: Step, dtype: "np.dtype[Any]", size: int
) -> np.ndarray:
    """Give back `size` values.

    Raises:
        CorruptFileError: this is no such block.
    """
    levels = np.empty(size, working_type(dtype))
    next(fill([parse(block, size)], [levels]))
    return times(levels, step, dtype)


def integers(block: memoryview, dtype: "np.dtype[Any]", size: int) -> np.ndarray:
    """Give back `size` levels for weights of a dtype, int64.

    Raises:
        CorruptFileError: this is no such block.
    """
    levels = np.empty(size, working_type(dtype))
    next(fill([parse(block, size)], [levels]))
    return levels.astype(np.int64)


def _complete(block: Packed, levels: np.ndarray) -> None:
    """Put in the raw bits, and the levels that are listed elsewhere.

    Raises:
        CorruptFileError: there are more or fewer far-out numbers than symbols say.
    """
    there = np.zeros(0, np.intp)
    if levels.min() == FAR:
        there = np.flatnonzero(levels == FAR)
    if len(there) != len(block.far):
        raise CorruptFileError("a trellis-coded block lacks a far-out number.")
    levels[there] = 0
    if block.tables.raw_bits:
        levels += _unpack_raw(block.raw, block.tables.raw_bits, len(levels)) << 2
    if max(levels.max(), -levels.min()) > MOST_LEVEL[4]:
        raise CorruptFileError(f"a level is beyond {MOST_LEVEL[4]}.")
    levels[there] = block.far  # rounded, where that is over 2^24
    if np.abs(levels[there]).max(initial=0) > FARTHEST:
        raise CorruptFileError(f"a far-out level is beyond {FARTHEST}.")


def _unpack_raw(packed: memoryview, bits: int, size: int) -> np.ndarray:
    planes = np.unpackbits(np.frombuffer(packed, np.uint8), count=bits * size)
    raw = np.zeros(size, np.int32)
    for bit, plane in enumerate(planes.reshape(bits, size)):
        raw |= plane.astype(np.int32) << bit
    return raw
