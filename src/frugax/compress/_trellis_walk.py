"""Trellis-coded lanes back to numbers: all lanes of many blocks take a step at once.

A step is some twenty operations of NumPy however few lanes there are, so blocks of
small tensors are decoded together: their lanes stand side by side, each with the tables
of its own block, and each block with its own words.

A slot is the low bits of a state. What it stands for is looked up under
`class << 13 | odd << 12 | slot`, with classes counted through all blocks.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ._trellis_lanes import Lanes
from ._trellis_tables import SCALE_BITS, Tables

LOWEST = 1 << 16  # states live in [2^16, 2^32) and move 16 bits at a time
# The level of a number that is listed elsewhere; real ones are within 2^24.
FAR = -(1 << 31)
_SLOTS = 1 << SCALE_BITS
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
    group: list[int] = []
    lanes = classes = 0
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].lanes.length):
        lanes += blocks[i].lanes.count
        classes += len(blocks[i].tables.halves)
        if group and (lanes > _MOST_LANES or classes > _MOST_CLASSES):
            yield group
            group, lanes = [], blocks[i].lanes.count
            classes = len(blocks[i].tables.halves)
        group.append(i)
    if group:
        yield group


def walk(blocks: Sequence[Packed]) -> list[np.ndarray | None]:
    """The levels of each block, flat int32; None where it does not end as it should.

    `FAR` stands for numbers that are far out, and raw bits are zero.
    """
    order = sorted(range(len(blocks)), key=lambda i: -blocks[i].lanes.length)
    ranked = [blocks[i] for i in order]
    firsts = np.cumsum([0, *(block.lanes.count for block in ranked)])
    ends = np.cumsum([0, *(len(block.words) for block in ranked)])
    states = np.concatenate([block.states for block in ranked])
    words = np.concatenate([block.words for block in ranked]).astype(np.uint32)
    out = [np.empty((b.lanes.count, b.lanes.length), np.int32) for b in ranked]
    at = _steps(ranked, firsts, states, words, ends[:-1].copy(), out)
    found: list[np.ndarray | None] = [None] * len(blocks)
    for i, levels, first, stop, here, end in zip(
        order, out, firsts[:-1], firsts[1:], at, ends[1:], strict=True
    ):
        # The coder began with every state at its lowest: a check that comes for free.
        if here == end and (states[first:stop] == LOWEST).all():
            found[i] = levels.reshape(-1)[: blocks[i].lanes.size]
    return found


def _steps(
    blocks: Sequence[Packed],
    firsts: np.ndarray,
    states: np.ndarray,
    words: np.ndarray,
    at: np.ndarray,
    out: list[np.ndarray],
) -> np.ndarray:
    """Decode into `out`, and say how many words each block has come to.

    Args:
        blocks: the longest lanes first.
        firsts: the first lane of each, and their end.
        states: of all lanes; changed in place.
        words: of all blocks.
        at: the first word of each block; changed in place.
        out: levels of each block, `(lanes, steps)`.
    """
    entries = _tables(blocks)
    context, changes = np.zeros(len(states), np.uint32), _changes(blocks, firsts)
    older = np.zeros((3, len(states)), np.uint32)  # branch bits, at bit 12
    slot = np.empty(len(states), np.uint32)
    index = np.empty(len(states), np.intp)  # take() would make it each time
    low, ramp = np.empty(len(states), bool), np.arange(len(states))
    tile = np.empty((_TILE, len(states)), np.int64)
    low_halves = tile.view(np.uint32)[:, ::2]
    lengths = [block.lanes.length for block in blocks]
    x, open_blocks = states, len(blocks)
    for k in range(lengths[0]):
        if k and k % _TILE == 0:
            _turn_over(tile, k - _TILE, firsts, out)
        if k == lengths[open_blocks - 1]:
            open_blocks = sum(length > k for length in lengths)
            lanes = firsts[open_blocks]
            x, slot, index, low = (part[:lanes] for part in (x, slot, index, low))
            context, older = context[:lanes], older[:, :lanes]
        for lanes, now in changes.get(k, ()):
            context[lanes] = now
        last, second, third = older[(k - 1) % 3], older[(k - 2) % 3], older[k % 3]
        np.bitwise_and(x, _SLOTS - 1, out=slot)
        np.bitwise_or(slot, context, out=slot)
        np.bitwise_or(slot, last, out=index)
        entries.take(index, out=tile[k % _TILE, : len(x)], mode="clip")
        entry = low_halves[k % _TILE, : len(x)]
        # The branch bit takes the place of the oldest: q ^ b[t-2] ^ b[t-3].
        np.bitwise_xor(third, second, out=third)
        np.bitwise_xor(third, entry, out=third)
        np.bitwise_and(third, _SLOTS, out=third)
        np.right_shift(x, SCALE_BITS, out=x)
        np.right_shift(entry, SCALE_BITS + 1, out=slot)
        np.multiply(x, slot, out=x)
        np.bitwise_and(entry, _SLOTS - 1, out=slot)
        np.add(x, slot, out=x)
        np.less(x, LOWEST, out=low)
        empty = low.nonzero()[0]
        if open_blocks == 1:
            new = words[at[0] : at[0] + len(empty)]
            at[0] += len(empty)
            if len(new) < len(empty):
                break
        else:
            edges = empty.searchsorted(firsts[: open_blocks + 1])
            counts = edges[1:] - edges[:-1]
            place = (at[:open_blocks] - edges[:-1]).repeat(counts)
            place += ramp[: len(empty)]
            new = words.take(place, mode="clip")  # past its own: seen at the end
            at[:open_blocks] += counts
        x[empty] = (x[empty] << np.uint32(16)) | new
    _turn_over(tile, (lengths[0] - 1) // _TILE * _TILE, firsts, out)
    return at


def _turn_over(
    tile: np.ndarray, first: int, firsts: np.ndarray, out: list[np.ndarray]
) -> None:
    """Put the levels of the steps from `first` on where they belong."""
    found = tile.view(np.int32)[:, 1::2]
    for i, levels in enumerate(out):
        now = levels[:, first : first + _TILE]
        now[:] = found[: now.shape[1], firsts[i] : firsts[i + 1]].T


def _tables(blocks: Sequence[Packed]) -> np.ndarray:
    """Of every slot of every table `frequency << 13 | q << 12 | inside`, and its level.

    After them a class that changes no state, for lanes that have ended.
    """
    entries: list[np.ndarray] = []
    levels: list[np.ndarray] = []
    for block in blocks:
        flat = block.tables.frequencies.reshape(-1, 256)
        start = np.cumsum(flat, axis=1) - flat
        # The slot that is added below makes what is inside of `-start`.
        packed = (flat << SCALE_BITS + 1) + ((np.arange(256) & 1) << SCALE_BITS) - start
        entries.append(np.repeat(packed.astype(np.uint32), flat.reshape(-1)))
        levels.append(np.repeat(_symbol_levels(block.tables), flat.reshape(-1)))
    idle = np.full(2 * _SLOTS, _SLOTS << SCALE_BITS + 1, np.uint32)
    every = np.concatenate([*entries, idle]).reshape(-1, _SLOTS)
    every += np.arange(_SLOTS, dtype=np.uint32)
    both = np.empty((every.size, 2), np.uint32)
    both[:, 0] = every.reshape(-1)
    both[:, 1] = np.concatenate([*levels, np.zeros(len(idle), np.int32)]).view(
        np.uint32
    )
    return both.view(np.int64)[:, 0]


def _symbol_levels(tables: Tables) -> np.ndarray:
    """The level of each class, parity and symbol, flat."""
    classes, odd, symbol = np.indices(tables.frequencies.shape).reshape(3, -1)
    half = (symbol >> 1) + tables.lowest[classes]
    levels = (half << (2 + tables.raw_bits)) + ((symbol & 1) << 1) + odd
    return np.where(symbol >> 1 >= tables.halves[classes], FAR, levels).astype(np.int32)


def _changes(
    blocks: Sequence[Packed], firsts: np.ndarray
) -> dict[int, list[tuple[slice, np.ndarray]]]:
    """Before which step which lanes get which context."""
    changes: dict[int, list[tuple[slice, np.ndarray]]] = {}
    base, idle = 0, sum(len(block.tables.halves) for block in blocks)
    for block, first in zip(blocks, firsts[:-1], strict=True):
        lanes = block.lanes
        stop = int(first) + lanes.count
        spread = lanes.spread(block.classes).astype(np.uint32) + np.uint32(base)
        base += len(block.tables.halves)
        short = lanes.size - (lanes.count - 1) * lanes.length  # of the last lane
        spread[-(-short // lanes.run) :, -1] = idle
        spread <<= np.uint32(SCALE_BITS + 1)
        for row, now in enumerate(spread):
            changes.setdefault(row * lanes.run, []).append((slice(first, stop), now))
        if short % lanes.run:
            ended = np.array([idle << SCALE_BITS + 1], np.uint32)
            changes.setdefault(short, []).append((slice(stop - 1, stop), ended))
    return changes
