"""Trellis-coded lanes back to numbers: all lanes of many blocks take a step at once.

A step is some twenty operations of NumPy however few lanes there are, so blocks of
small tensors are decoded together: their lanes stand side by side, each with the tables
of its own block, and each block with its own words.

Beside one look-up of all that a state means, in `_trellis_entries.py`, no operation has
to convert anything, as states have 64 bits here.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ._trellis_entries import CLASS, FREQUENCY, LEVEL, SLOTS, entries_of
from ._trellis_lanes import Lanes
from ._trellis_tables import SCALE_BITS, Tables

LOWEST = 1 << 16  # states live in [2^16, 2^32) and move 16 bits at a time
# NumPy takes an array as an operand in half the time that a number of Python's takes.
_BY_12, _BY_16, _TO_FREQUENCY, _IN_SLOT, _Q, _Q_AND_CLASS, _LEAST = (
    np.array(n, np.uint64)
    for n in (
        *(SCALE_BITS, 16, FREQUENCY, SLOTS - 1, SLOTS),
        *((1 << LEVEL) - SLOTS, LOWEST),
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
        levels <<= 64 - FREQUENCY
        levels >>= 64 - FREQUENCY + LEVEL
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
        spread <<= np.uint64(CLASS)
        for row, now in enumerate(spread):
            changes.setdefault(row * lanes.run, []).append((slice(first, stop), now))
        if short % lanes.run:
            ended = np.array([idle << CLASS], np.uint64)
            changes.setdefault(short, []).append((slice(stop - 1, stop), ended))
    return changes
