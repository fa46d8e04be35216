"""Trellis-coded lanes back to numbers: all lanes of many blocks take a step at once.

A step is some twenty operations of NumPy however few lanes there are, so blocks of
small tensors are decoded together: their lanes stand side by side, each with the tables
of its own block, and each block with its own words.

A slot is the low bits of a state. What it stands for is looked up under
`class << 13 | odd << 12 | slot`, with classes counted through all blocks. An entry has,
from its lowest bit: 12 bits of what is inside of the symbol's range, q, 9 bits of the
class, 29 of the level, 13 of the frequency. So one look-up is enough, and with states
of 64 bits no operation has to convert anything.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ._trellis_lanes import Lanes
from ._trellis_tables import SCALE_BITS, Tables

LOWEST = 1 << 16  # states live in [2^16, 2^32) and move 16 bits at a time
# The level of a number that is listed elsewhere; real ones are within 2^25.
FAR = -(1 << 28)
_SLOTS = 1 << SCALE_BITS
_CLASS, _LEVEL, _FREQUENCY = SCALE_BITS + 1, SCALE_BITS + 10, SCALE_BITS + 39
# NumPy takes an array as an operand in half the time that a number of Python's takes.
_BY_12, _BY_16, _TO_FREQUENCY, _IN_SLOT, _Q, _Q_AND_CLASS, _LEAST = (
    np.array(n, np.uint64)
    for n in (
        *(SCALE_BITS, 16, _FREQUENCY, _SLOTS - 1, _SLOTS),
        *((1 << _LEVEL) - _SLOTS, LOWEST),
    )
)
# Numbers side by side are read again soon: so many fit in a processor's cache.
_MOST_LANES = 6144
_MOST_CLASSES = 256  # 64 KiB of tables each
# Steps whose levels wait to be put where they belong: turned over in the cache.
_TILE = 64


@dataclasses.dataclass(frozen=True)
class Packed:
    """A block whose parts are sound by themselves, not yet decoded.

    Attributes:
        lanes: how its numbers are cut up.
        tables: what coded them.
        classes: the class of each run.
        states: of each lane, uint32, none below `LOWEST`.
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


def groups(blocks: Sequence[Packed]) -> Iterator[list[int]]:
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


def walk(blocks: Sequence[Packed], out: Sequence[np.ndarray]) -> list[bool]:
    """Decode the levels of each block; say which of them end as they should.

    `FAR` stands for numbers that are far out, and raw bits are zero.

    Args:
        blocks: some.
        out: where the levels of each go, flat floats of 32 bits or more.
    """
    order = sorted(range(len(blocks)), key=lambda i: -blocks[i].lanes.length)
    ranked = [blocks[i] for i in order]
    firsts = np.cumsum([0, *(block.lanes.count for block in ranked)])
    ends = np.cumsum([0, *(len(block.words) for block in ranked)])
    states = np.concatenate([block.states for block in ranked]).astype(np.uint64)
    words = np.concatenate([block.words for block in ranked])
    tile = _Tile(ranked, firsts, [out[i] for i in order])
    at = _steps(ranked, firsts, states, words, ends[:-1].copy(), tile)
    sound = [False] * len(blocks)
    for i, first, stop, here, end in zip(
        order, firsts[:-1], firsts[1:], at, ends[1:], strict=True
    ):
        # The coder began with every state at its lowest: a check that comes for free.
        sound[i] = bool(here == end and (states[first:stop] == LOWEST).all())
    return sound


class _Tile:
    """Entries of some steps of all lanes, and where the levels in them belong."""

    def __init__(
        self, blocks: Sequence[Packed], firsts: np.ndarray, out: Sequence[np.ndarray]
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
        levels <<= 64 - _FREQUENCY
        levels >>= 64 - _FREQUENCY + _LEVEL
        for place, start, stop in self._places:
            now = place[:, first : first + _TILE]
            now[:] = levels[: now.shape[1], start:stop].T


def _steps(
    blocks: Sequence[Packed],
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
    entries, changes = _tables(blocks), _changes(blocks, firsts)
    # Branch bits, at bit 12, and over them the class of the next number.
    older = np.zeros((3, len(states)), np.uint64)
    slot = np.empty(len(states), np.uint64)
    low, ramp = np.empty(len(states), bool), np.arange(len(states))
    lengths = [block.lanes.length for block in blocks]
    x, rows, branches, at_now = states, tile.rows, [*older], at
    index, open_blocks, edges_now = slot.view(np.int64), len(blocks), firsts
    for k in range(lengths[0]):
        if k and k % _TILE == 0:
            tile.turn_over(k - _TILE)
        if k == lengths[open_blocks - 1]:
            open_blocks = sum(length > k for length in lengths)
            edges_now, at_now = firsts[: open_blocks + 1], at[:open_blocks]
            lanes = edges_now[-1]
            x, slot, low = x[:lanes], slot[:lanes], low[:lanes]
            rows = [row[:lanes] for row in rows]
            branches, index = [*older[:, :lanes]], slot.view(np.int64)
        for lanes, now in changes.get(k, ()):
            older[:, lanes] &= _Q
            older[:, lanes] |= now
        entry, last = rows[k % _TILE], branches[(k - 1) % 3]
        second, third = branches[(k - 2) % 3], branches[k % 3]
        np.bitwise_and(x, _IN_SLOT, slot)
        np.bitwise_or(slot, last, slot)
        entries.take(index, out=entry, mode="clip")
        # The branch bit takes the place of the oldest, q ^ b[t-2] ^ b[t-3]; of three
        # times the class one is left.
        np.bitwise_xor(third, second, third)
        np.bitwise_xor(third, entry, third)
        np.bitwise_and(third, _Q_AND_CLASS, third)
        np.right_shift(x, _BY_12, x)
        np.right_shift(entry, _TO_FREQUENCY, slot)
        np.multiply(x, slot, x)
        np.bitwise_and(entry, _IN_SLOT, slot)
        np.add(x, slot, x)
        np.less(x, _LEAST, low)
        empty = low.nonzero()[0]
        if open_blocks == 1:
            new = words[at[0] : at[0] + len(empty)]
            at[0] += len(empty)
            if len(new) < len(empty):
                break
        else:
            edges = empty.searchsorted(edges_now)
            counts = edges[1:] - edges[:-1]
            place = (at_now - edges[:-1]).repeat(counts)
            place += ramp[: len(empty)]
            new = words.take(place, mode="clip")  # past its own: seen at the end
            at_now += counts
        filled = x.take(empty, mode="clip")
        np.left_shift(filled, _BY_16, filled)
        np.bitwise_or(filled, new, filled)
        x[empty] = filled
    tile.turn_over((lengths[0] - 1) // _TILE * _TILE)
    return at


def _tables(blocks: Sequence[Packed]) -> np.ndarray:
    """The entry of every slot of every table, as told above.

    After them a class that changes no state, for lanes that have ended.
    """
    count = sum(len(block.tables.halves) for block in blocks)
    entries = np.empty((count + 1, 2, _SLOTS), np.uint64)
    at = 0
    for block in blocks:
        classes = len(block.tables.halves)
        flat = block.tables.frequencies
        packed = flat.astype(np.uint64) << np.uint64(_FREQUENCY)
        packed |= _symbol_levels(block.tables) << np.uint64(_LEVEL)
        packed |= (np.arange(256, dtype=np.uint64) & 1) << np.uint64(SCALE_BITS)
        # The slot that is added below makes what is inside of this.
        packed -= (np.cumsum(flat, axis=2) - flat).astype(np.uint64)
        packed = np.repeat(packed.reshape(-1), flat.reshape(-1))
        entries[at : at + classes] = packed.reshape(classes, 2, _SLOTS)
        at += classes
    entries[-1] = np.uint64(_SLOTS << _FREQUENCY)
    entries += np.arange(_SLOTS, dtype=np.uint64)
    entries |= (np.arange(count + 1, dtype=np.uint64) << np.uint64(_CLASS))[
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
    levels = np.where(far, FAR, levels) & ((1 << (_FREQUENCY - _LEVEL)) - 1)
    return levels.astype(np.uint64)


def _changes(
    blocks: Sequence[Packed], firsts: np.ndarray
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
        spread <<= np.uint64(_CLASS)
        for row, now in enumerate(spread):
            changes.setdefault(row * lanes.run, []).append((slice(first, stop), now))
        if short % lanes.run:
            ended = np.array([idle << _CLASS], np.uint64)
            changes.setdefault(short, []).append((slice(stop - 1, stop), ended))
    return changes
