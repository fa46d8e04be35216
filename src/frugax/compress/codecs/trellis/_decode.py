"""The trellis codec's blocks, read: checked part by part, then decoded many at a time.

Layout and writer are in `_trellis_block.py`, the decoder's loop in `_trellis_walk.py`.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError

from .._uniform import MOST_LEVEL, Step, compute_type, times
from .._zstd import decompress_frame
from ._encode import HEADER
from ._quantise import FARTHEST, LANE, Lanes
from ._tables import LOWEST_STATE, MOST_CLASSES, SCALE_BITS, Tables, unpack

# The level of a number that is listed elsewhere; real ones are within 2^25.
FAR = -(1 << 28)
SLOTS = 1 << SCALE_BITS
# The lowest bit of each part.
CLASS, LEVEL, FREQUENCY = SCALE_BITS + 1, SCALE_BITS + 10, SCALE_BITS + 39


def entries_of(blocks: Sequence[Tables]) -> np.ndarray:
    """The entry of every slot of every table, as told above.

    After them a class that changes no state, for lanes that have ended.
    """
    count = sum(len(block.halves) for block in blocks)
    entries = np.empty((count + 1, 2, SLOTS), np.uint64)
    at = 0
    for block in blocks:
        classes = len(block.halves)
        flat = block.frequencies
        packed = flat.astype(np.uint64) << np.uint64(FREQUENCY)
        packed |= _symbol_levels(block) << np.uint64(LEVEL)
        packed |= (np.arange(256, dtype=np.uint64) & 1) << np.uint64(SCALE_BITS)
        # The slot that is added below makes what is inside of this.
        packed -= (np.cumsum(flat, axis=2) - flat).astype(np.uint64)
        packed = np.repeat(packed.reshape(-1), flat.reshape(-1))
        entries[at : at + classes] = packed.reshape(classes, 2, SLOTS)
        at += classes
    entries[-1] = np.uint64(SLOTS << FREQUENCY)
    entries += np.arange(SLOTS, dtype=np.uint64)
    entries |= (np.arange(count + 1, dtype=np.uint64) << np.uint64(CLASS))[
        :, None, None
    ]
    return entries.reshape(-1)


def _symbol_levels(tables: Tables) -> np.ndarray:
    """The level of each class, parity and symbol, in 29 bits, `(classes, 2, 256)`."""
    symbol = np.arange(256)
    half = (symbol >> 1) + tables.lowest[:, None, None]
    levels = (half << (2 + tables.raw_bits)) + ((symbol & 1) << 1)
    levels = levels + np.arange(2)[:, None]
    far = symbol >> 1 >= tables.halves[:, None, None]
    levels = np.where(far, FAR, levels) & ((1 << (FREQUENCY - LEVEL)) - 1)
    return levels.astype(np.uint64)


# NumPy takes an array as an operand in half the time that a number of Python's takes.
_BY_12, _BY_16, _TO_FREQUENCY, _IN_SLOT, _Q, _Q_AND_CLASS, _LEAST = (
    np.array(n, np.uint64)
    for n in (
        *(SCALE_BITS, 16, FREQUENCY, SLOTS - 1, SLOTS),
        *((1 << LEVEL) - SLOTS, LOWEST_STATE),
    )
)
# Numbers side by side are read again soon: so many fit in a processor's cache.
_MOST_LANES = 6144
_MOST_CLASSES = 256  # 64 KiB of tables each
# Steps whose levels wait to be put where they belong: turned over in the cache.
_TILE = 64


@dataclasses.dataclass(frozen=True)
class ParsedBlock:
    """A block whose parts are sound by themselves, not yet decoded.

    Attributes:
        lanes: how its numbers are cut up.
        tables: what coded them.
        classes: the class of each run.
        states: of each lane, uint32, none below `LOWEST_STATE`.
        words: what the lanes share, uint16.
        far: the numbers that are far out, in their order.
        raw: low bits that were not coded.
    """

    lanes: Lanes
    tables: Tables
    classes: np.ndarray
    states: np.ndarray
    words: np.ndarray
    far: np.ndarray
    raw: memoryview


def groups(blocks: Sequence[ParsedBlock]) -> Iterator[list[int]]:
    """Indices of blocks to decode together: many lanes of like length, in some MB."""
    every = sum(block.lanes.count for block in blocks)
    # Groups of about one size: a step of few lanes takes as long as one of hundreds.
    most = every / max(1, -(-every // _MOST_LANES))
    group: list[int] = []
    before = number = classes = 0
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].lanes.length):
        lanes, of_each = blocks[i].lanes.count, len(blocks[i].tables.halves)
        now = int((before + lanes / 2) / most)
        if group and (now != number or classes + of_each > _MOST_CLASSES):
            yield group
            group, classes = [], 0
        group.append(i)
        before, number, classes = before + lanes, now, classes + of_each
    if group:
        yield group


def walk(blocks: Sequence[ParsedBlock], out: Sequence[np.ndarray]) -> list[bool]:
    """Decode the levels of each block; say which of them end as they should.

    `_trellis_entries.FAR` stands for numbers that are far out, and raw bits are zero.

    Args:
        blocks: some.
        out: where the levels of each go, flat floats of 32 bits or more.
    """
    order = sorted(range(len(blocks)), key=lambda i: -blocks[i].lanes.length)
    ranked = [blocks[i] for i in order]
    firsts = np.cumsum([0, *(block.lanes.count for block in ranked)])
    ends = np.cumsum([0, *(len(block.words) for block in ranked)])
    states = np.concatenate([block.states for block in ranked]).astype(np.uint64)
    # One more, as nothing can be taken of none at all.
    words = np.concatenate([*(block.words for block in ranked), np.zeros(1, "<u2")])
    tile = _Tile(ranked, firsts, [out[i] for i in order])
    at = _steps(ranked, firsts, states, words, ends[:-1].copy(), tile)
    sound = [False] * len(blocks)
    for i, first, stop, here, end in zip(
        order, firsts[:-1], firsts[1:], at, ends[1:], strict=True
    ):
        # The coder began with every state at its lowest: a check that comes for free.
        sound[i] = bool(here == end and (states[first:stop] == LOWEST_STATE).all())
    return sound


class _Tile:
    """Entries of some steps of all lanes, and where the levels in them belong."""

    def __init__(
        self,
        blocks: Sequence[ParsedBlock],
        firsts: np.ndarray,
        out: Sequence[np.ndarray],
    ) -> None:
        lanes = int(firsts[-1])
        # Rows a power of two apart would share their places in a cache.
        width = (lanes + 7 & -16) + 8
        entries = np.empty((_TILE, width), np.uint64)[:, :lanes]
        self.rows = [*entries]
        self._levels = entries.view(np.int64)
        # Of each block its whole lanes, and the last one, which may be shorter.
        self._places: list[tuple[np.ndarray, int, int]] = []
        for block, flat, first in zip(blocks, out, firsts[:-1].tolist(), strict=True):
            length, count = block.lanes.length, block.lanes.count
            last = (count - 1) * length
            whole = flat[:last].reshape(count - 1, length)
            self._places.append((whole, first, first + count - 1))
            ending = flat[last:].reshape(1, -1)
            self._places.append((ending, first + count - 1, first + count))

    def turn_over(self, first: int) -> None:
        """Put the levels of the steps from `first` on where they belong."""
        levels = self._levels
        levels <<= 64 - FREQUENCY
        levels >>= 64 - FREQUENCY + LEVEL
        for place, start, stop in self._places:
            now = place[:, first : first + _TILE]
            now[:] = levels[: now.shape[1], start:stop].T


def _steps(
    blocks: Sequence[ParsedBlock],
    firsts: np.ndarray,
    states: np.ndarray,
    words: np.ndarray,
    at: np.ndarray,
    tile: _Tile,
) -> np.ndarray:
    """Decode into `tile`, and say how many words each block has come to.

    Args:
        blocks: the longest lanes first.
        firsts: the first lane of each, and their end.
        states: of all lanes, uint64; changed in place.
        words: of all blocks.
        at: the first word of each block; changed in place.
        tile: takes what is decoded.
    """
    entries, changes = (
        entries_of([block.tables for block in blocks]),
        _changes(blocks, firsts),
    )
    # Branch bits, at bit 12, and over them the class of the next number.
    older = np.zeros((3, len(states)), np.uint64)
    slot = np.empty(len(states), np.uint64)
    low, ramp = np.empty(len(states), bool), np.arange(len(states))
    lengths = [block.lanes.length for block in blocks]
    x, rows, at_now, edges_now = states, tile.rows, at, firsts
    third, second, last = older
    index, open_blocks = slot.view(np.int64), len(blocks)
    marks = {*changes, *lengths, *range(0, lengths[0], _TILE)}
    for k, stop in itertools.pairwise(sorted(marks)):
        if k and k % _TILE == 0:
            tile.turn_over(k - _TILE)
        if k == lengths[open_blocks - 1]:
            open_blocks = sum(length > k for length in lengths)
            edges_now, at_now = firsts[: open_blocks + 1], at[:open_blocks]
            lanes = edges_now[-1]
            x, slot, low = x[:lanes], slot[:lanes], low[:lanes]
            third, second, last = third[:lanes], second[:lanes], last[:lanes]
            rows, index = [row[:lanes] for row in rows], slot.view(np.int64)
        for lanes, now in changes.get(k, ()):
            older[:, lanes] &= _Q
            older[:, lanes] |= now
        for entry in rows[k % _TILE : k % _TILE + stop - k]:
            np.bitwise_and(x, _IN_SLOT, slot)
            np.bitwise_or(slot, last, slot)
            entries.take(index, None, entry, "clip")
            # The branch bit takes the place of the oldest, q ^ b[t-2] ^ b[t-3]; of
            # three times the class one is left.
            np.bitwise_xor(third, second, third)
            np.bitwise_xor(third, entry, third)
            np.bitwise_and(third, _Q_AND_CLASS, third)
            third, second, last = second, last, third
            np.right_shift(x, _BY_12, x)
            np.right_shift(entry, _TO_FREQUENCY, slot)
            np.multiply(x, slot, x)
            np.bitwise_and(entry, _IN_SLOT, slot)
            np.add(x, slot, x)
            np.less(x, _LEAST, low)
            (empty,) = low.nonzero()
            edges = empty.searchsorted(edges_now)
            counts = edges[1:] - edges[:-1]
            place = (at_now - edges[:-1]).repeat(counts)
            place += ramp[: len(place)]
            filled = x.take(empty)
            np.left_shift(filled, _BY_16, filled)
            # Past a block's own words: seen at the end.
            np.bitwise_or(filled, words.take(place, None, None, "clip"), filled)
            x[empty] = filled
            at_now += counts
    tile.turn_over((lengths[0] - 1) // _TILE * _TILE)
    return at


def _changes(
    blocks: Sequence[ParsedBlock], firsts: np.ndarray
) -> dict[int, list[tuple[slice, np.ndarray]]]:
    """Before which step which lanes get which class."""
    changes: dict[int, list[tuple[slice, np.ndarray]]] = {}
    base, idle = 0, sum(len(block.tables.halves) for block in blocks)
    for block, first in zip(blocks, firsts[:-1], strict=True):
        lanes = block.lanes
        stop = int(first) + lanes.count
        spread = lanes.spread(block.classes).astype(np.uint64) + np.uint64(base)
        base += len(block.tables.halves)
        short = lanes.size - (lanes.count - 1) * lanes.length  # of the last lane
        spread[-(-short // lanes.run) :, -1] = idle
        spread <<= np.uint64(CLASS)
        for row, now in enumerate(spread):
            changes.setdefault(row * lanes.run, []).append((slice(first, stop), now))
        if short % lanes.run:
            ended = np.array([idle << CLASS], np.uint64)
            changes.setdefault(short, []).append((slice(stop - 1, stop), ended))
    return changes


def parse(block: memoryview, size: int) -> ParsedBlock:
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
    packed = decompress_frame(bytes(pieces[0]), most=count * 600)
    tables = unpack(packed, classes=count, raw_bits=raw_bits)
    classes = np.zeros(lanes.runs, np.uint8)
    if class_bytes:
        plain = decompress_frame(bytes(pieces[1]), most=lanes.runs)
        classes = np.frombuffer(plain, np.uint8)
    if len(classes) != lanes.runs or classes.max() >= count:
        raise CorruptFileError("a trellis-coded block has damaged classes.")
    far = np.zeros(0, np.int32)
    if far_bytes:
        plain = decompress_frame(bytes(pieces[2]), most=4 * size)
        if len(plain) % 4:
            raise CorruptFileError("a trellis-coded block has a damaged list.")
        far = np.frombuffer(plain, "<i4").astype(np.int32)
    states = np.frombuffer(pieces[3], "<u4").astype(np.uint32)
    if states.min() < LOWEST_STATE:
        raise CorruptFileError("a trellis-coded block has a damaged state.")
    words = np.frombuffer(pieces[4], "<u2")
    return ParsedBlock(lanes, tables, classes, states, words, far, pieces[5])


def fill(blocks: Sequence[ParsedBlock], out: Sequence[np.ndarray]) -> Iterator[None]:
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
    levels = np.empty(size, compute_type(dtype))
    next(fill([parse(block, size)], [levels]))
    return times(levels, step, dtype)


def integers(block: memoryview, dtype: "np.dtype[Any]", size: int) -> np.ndarray:
    """Give back `size` levels for weights of a dtype, int64.

    Raises:
        CorruptFileError: this is no such block.
    """
    levels = np.empty(size, compute_type(dtype))
    next(fill([parse(block, size)], [levels]))
    return levels.astype(np.int64)


def _complete(block: ParsedBlock, levels: np.ndarray) -> None:
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
