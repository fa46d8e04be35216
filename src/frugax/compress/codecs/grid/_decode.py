"""Decode blocks of integers: check each part by part, then decode many at once.

One step of all lanes is some twenty NumPy operations however few lanes there are, so
blocks of small tensors are decoded together: their lanes stand side by side, each with
the tables of its own block, and each block with its own words.

A decoding step is one look-up. A slot is the low `SCALE_BITS` of a state, and the entry
of a slot stands under `class << 13 | odd << 12 | slot`, with classes counted through
all blocks. From its lowest bit an entry has: 12 bits of the place of the slot in its
symbol's range, q, 9 bits of the class, 29 of the level, 13 of the frequency. On a
uniform grid q is 0 there, so that no integer counts as odd.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from frugax.errors import CorruptFileError

from .._zstd import decompress_frame
from ..steps import MAX_LEVEL
from ._encode import FAR_TYPES, HEADER, LENGTH, PLAIN, SOME_FAR
from ._form import Form
from ._quantise import MAX_FAR_LEVEL, MAX_ROW_LANE, LaneLayout
from ._scales import unpack_exponents
from ._tables import LOWEST_STATE, MAX_CLASSES, SCALE_BITS, Tables, parse_tables

# Mark integers that are listed elsewhere, and those that are 0 without raw bits; real
# ones are within 2^27.
_FAR, _ZERO = -(1 << 28), -(1 << 27) - 2
_SLOTS = 1 << SCALE_BITS
# The lowest bit of each part of an entry.
_CLASS, _LEVEL, _FREQUENCY = SCALE_BITS + 1, SCALE_BITS + 10, SCALE_BITS + 39
# NumPy takes a 0-d array as an operand in half the time of a Python integer.
_BY_12, _BY_16, _TO_FREQUENCY, _IN_SLOT, _Q, _Q_AND_CLASS, _LOWEST = (
    np.array(n, np.uint64)
    for n in (
        *(SCALE_BITS, 16, _FREQUENCY, _SLOTS - 1, _SLOTS),
        *((1 << _LEVEL) - _SLOTS, LOWEST_STATE),
    )
)
# Lanes decoded together: their rows are read again soon and should stay in the cache.
_MAX_LANES = 6144
_MAX_GROUP_CLASSES = 256  # 64 KiB of look-up each
# Steps whose entries wait to be transposed into the output, in the cache.
_TILE = 64


@dataclasses.dataclass(frozen=True)
class ParsedBlock:
    """A block whose parts are valid by themselves, not yet decoded.

    Attributes:
        lanes: how its integers are cut up.
        tables: the tables that they were coded with.
        classes: the scale class of each run.
        states: of each lane, uint32, none below `LOWEST_STATE`.
        words: the words that the lanes share, uint16.
        far: the far-out integers, in their order.
        raw: low bits that were not coded.
        exponents: of the scale of each run; None where all are 1.
    """

    lanes: LaneLayout
    tables: Tables
    classes: np.ndarray
    states: np.ndarray
    words: np.ndarray
    far: np.ndarray
    raw: memoryview
    exponents: np.ndarray | None = None


def parse(block: memoryview, size: int, form: Form) -> ParsedBlock:
    """Take a block of `size` integers apart; scales of its runs may stand before it."""
    exponents = None
    if form.scaled:
        exponents, block = unpack_exponents(block, size)
    if len(block) < HEADER.size:
        raise CorruptFileError("a coded block is cut off.")
    length, run, count, raw_bits, table_bytes = HEADER.unpack_from(block)
    # A forged lane longer than any writer makes could ask for minutes: each step of it
    # costs the same few NumPy calls, for however few lanes.
    if not (1 <= run <= length <= 2 * MAX_ROW_LANE and length % run == 0):
        raise CorruptFileError("a coded block contradicts its own header.")
    lanes = LaneLayout(size, length, run)
    if exponents is not None and len(exponents) != lanes.runs:
        raise CorruptFileError("a coded block lacks a scale.")
    if not 1 <= count <= MAX_CLASSES:
        raise CorruptFileError("a coded block contradicts its own header.")
    has_far, raw_bits = bool(raw_bits & SOME_FAR), raw_bits & ~SOME_FAR
    packed, block = _take_part(block[HEADER.size :], table_bytes, count * 600)
    tables = parse_tables(
        packed, classes=count, raw_bits=raw_bits, trellis=form.trellis
    )
    classes, kind = np.zeros(lanes.runs, np.uint8), np.dtype(FAR_TYPES[form.trellis])
    far = np.zeros(0, kind)
    if count > 1:
        plain, block = _take_part(block, None, lanes.runs)
        classes = np.frombuffer(plain, np.uint8)
        if len(classes) != lanes.runs or classes.max() >= count:
            raise CorruptFileError("a coded block has damaged classes.")
    if has_far:
        plain, block = _take_part(block, None, kind.itemsize * size)
        if len(plain) % kind.itemsize:
            raise CorruptFileError("a coded block has a damaged list.")
        far = np.frombuffer(plain, kind)
    state_bytes, raw_bytes = 4 * lanes.count, _count_raw_bytes(raw_bits, size)
    if raw_bits and not form.trellis:
        if len(block) < LENGTH.size or LENGTH.unpack_from(block)[0] > raw_bytes:
            raise CorruptFileError("a coded block contradicts its own header.")
        (raw_bytes,), block = LENGTH.unpack_from(block), block[LENGTH.size :]
    word_bytes = len(block) - state_bytes - raw_bytes
    if word_bytes < 0 or word_bytes % 2:
        raise CorruptFileError("a coded block contradicts its own header.")
    states = np.frombuffer(block[:state_bytes], "<u4").astype(np.uint32)
    if states.min() < LOWEST_STATE:
        raise CorruptFileError("a coded block has a damaged state.")
    words = np.frombuffer(block[state_bytes : state_bytes + word_bytes], "<u2")
    raw = block[state_bytes + word_bytes :]
    return ParsedBlock(lanes, tables, classes, states, words, far, raw, exponents)


def _take_part(
    block: memoryview, length: int | None, max_bytes: int
) -> tuple[bytes, memoryview]:
    """Return a part at the start of a block, unpacked, and what stands behind it."""
    if length is None:
        if len(block) < LENGTH.size:
            raise CorruptFileError("a coded block is cut off.")
        length = int(LENGTH.unpack_from(block)[0])
        block = block[LENGTH.size :]
    packed, rest = block[:length], block[length:]
    if packed[:1] != PLAIN:
        return decompress_frame(bytes(packed), max_bytes=max_bytes), rest
    if length > max_bytes + 1:
        raise CorruptFileError("a part of a coded block is too long.")
    return bytes(packed[1:]), rest


def group_blocks(blocks: Sequence[ParsedBlock]) -> Iterator[list[int]]:
    """Yield indices of blocks to decode together: many lanes of like length."""
    every = sum(block.lanes.count for block in blocks)
    # Equal groups: a step of few lanes takes as long as a step of hundreds.
    target = every / max(1, -(-every // _MAX_LANES))
    group: list[int] = []
    before = number = classes = 0
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].lanes.length):
        lanes, own_classes = blocks[i].lanes.count, len(blocks[i].tables.halves)
        now = int((before + lanes / 2) / target)
        if group and (now != number or classes + own_classes > _MAX_GROUP_CLASSES):
            yield group
            group, classes = [], 0
        group.append(i)
        before, number, classes = before + lanes, now, classes + own_classes
    if group:
        yield group


def decode_blocks(
    blocks: Sequence[ParsedBlock], out: Sequence[np.ndarray]
) -> Iterator[None]:
    """Decode the levels of all blocks at once; each turn confirms the next block."""
    valid = _trellis_decode_lanes(blocks, out)
    for block, levels, ends_well in zip(blocks, out, valid, strict=True):
        if not ends_well:
            raise CorruptFileError("a coded block does not end where it should.")
        _add_raw_and_far(block, levels)
        yield


def decode_integers(
    parsed: ParsedBlock, working: "type[np.float32] | type[np.float64]"
) -> np.ndarray:
    """Return the levels of a block, int64."""
    levels = np.empty(parsed.lanes.size, working)
    next(decode_blocks([parsed], [levels]))
    return levels.astype(np.int64)


def _add_raw_and_far(block: ParsedBlock, levels: np.ndarray) -> None:
    # Fill in the raw bits, and the levels that are listed apart.
    there = np.zeros(0, np.intp)
    if levels.min() == _FAR:
        there = np.flatnonzero(levels == _FAR)
    if len(there) != len(block.far):
        raise CorruptFileError("a coded block lacks a far-out number.")
    levels[there] = 0
    tables = block.tables
    if tables.raw_bits and tables.trellis:
        levels += _unpack_raw_bits(block.raw, tables.raw_bits, len(levels)) << 2
    elif tables.raw_bits:
        raw = levels != _ZERO
        count = int(np.count_nonzero(raw))
        if len(block.raw) != _count_raw_bytes(tables.raw_bits, count):
            raise CorruptFileError("a coded block lacks raw bits.")
        np.putmask(levels, ~raw, 0)
        levels *= 2.0**tables.raw_bits
        levels[raw] += _unpack_raw_bits(block.raw, tables.raw_bits, count)
    limit, of_far = MAX_LEVEL[4], MAX_FAR_LEVEL
    if not tables.trellis:
        limit = of_far = MAX_LEVEL[levels.itemsize]
    if max(levels.max(), -levels.min()) > limit:
        raise CorruptFileError(f"a level is beyond {limit}.")
    levels[there] = block.far  # float32 rounds those over 2^24
    if np.abs(levels[there]).max(initial=0) > of_far:
        raise CorruptFileError(f"a far-out level is beyond {of_far}.")


def _count_raw_bytes(bits: int, size: int) -> int:
    return (bits * size + 7) // 8


def _unpack_raw_bits(packed: memoryview, bits: int, size: int) -> np.ndarray:
    planes = np.unpackbits(np.frombuffer(packed, np.uint8), count=bits * size)
    kind = np.int32 if bits < 29 else np.int64
    raw = np.zeros(size, kind)
    for bit, plane in enumerate(planes.reshape(bits, size)):
        raw |= plane.astype(kind) << kind(bit)
    return raw


def _build_lookup(blocks: Sequence[Tables]) -> np.ndarray:
    """Return the entry of every slot of every table, as the module describes it.

    After them comes a class that changes no state, for lanes that have ended.
    """
    count = sum(len(block.halves) for block in blocks)
    # Those of odd integers of a uniform grid are never looked up.
    entries = np.empty((count + 1, 2, _SLOTS), np.uint64)
    slots, at = np.arange(_SLOTS, dtype=np.uint64), 0
    for block in blocks:
        flat = block.frequencies
        classes, parities, _ = flat.shape
        packed = flat.astype(np.uint64) << np.uint64(_FREQUENCY)
        levels = _symbol_levels(block) & ((1 << (_FREQUENCY - _LEVEL)) - 1)
        packed |= levels.astype(np.uint64) << np.uint64(_LEVEL)
        if block.trellis:
            packed |= (np.arange(256, dtype=np.uint64) & 1) << np.uint64(SCALE_BITS)
        # Minus the symbol's start: adding the slot below leaves its place in the range.
        packed -= (np.cumsum(flat, axis=2) - flat).astype(np.uint64)
        of_class = np.arange(at, at + classes, dtype=np.uint64) << np.uint64(_CLASS)
        packed = np.repeat(packed.reshape(-1), flat.reshape(-1))
        packed = packed.reshape(classes, parities, _SLOTS)
        packed += slots
        packed |= of_class[:, None, None]
        entries[at : at + classes, :parities] = packed
        at += classes
    entries[-1] = np.uint64(_SLOTS << _FREQUENCY) + slots
    entries[-1] |= np.uint64(count << _CLASS)
    return entries.reshape(-1)


def _symbol_levels(tables: Tables) -> np.ndarray:
    """Return the level of each class, parity and symbol, int64."""
    symbol = np.arange(256)
    half = (symbol >> 1) + tables.lowest[:, None, None]
    if tables.trellis:
        levels = (half << (2 + tables.raw_bits)) + ((symbol & 1) << 1)
        levels = levels + np.arange(2)[:, None]
    else:  # raw bits are still missing
        levels = (half << 1) + (symbol & 1)
    far = symbol >> 1 >= tables.halves[:, None, None]
    levels = np.where(far, _FAR, levels)
    if not tables.trellis:
        zero = symbol == 2 * tables.halves[:, None, None] + 1
        levels[zero] = _ZERO if tables.raw_bits else 0
    return levels


def _trellis_decode_lanes(
    blocks: Sequence[ParsedBlock], out: Sequence[np.ndarray]
) -> list[bool]:
    """Decode the levels of each block into `out`; say which blocks end as they should.

    `_FAR` stands for far-out integers, and raw bits are zero.
    """
    order = sorted(range(len(blocks)), key=lambda i: -blocks[i].lanes.length)
    ranked = [blocks[i] for i in order]
    firsts = np.cumsum([0, *(block.lanes.count for block in ranked)])
    ends = np.cumsum([0, *(len(block.words) for block in ranked)])
    states = np.concatenate([block.states for block in ranked]).astype(np.uint64)
    # One extra word, because `take` refuses an empty array.
    words = np.concatenate([*(block.words for block in ranked), np.zeros(1, "<u2")])
    tile = _OutputTile(ranked, firsts, [out[i] for i in order])
    used = _decode_steps(ranked, firsts, states, words, ends[:-1].copy(), tile)
    valid = [False] * len(blocks)
    for i, first, stop, at, end in zip(
        order, firsts[:-1], firsts[1:], used, ends[1:], strict=True
    ):
        # The encoder started every state at its lowest value: a free integrity check.
        valid[i] = bool(at == end and (states[first:stop] == LOWEST_STATE).all())
    return valid


class _OutputTile:
    """Entries of some steps of all lanes, and the places of their levels."""

    def __init__(
        self,
        blocks: Sequence[ParsedBlock],
        firsts: np.ndarray,
        out: Sequence[np.ndarray],
    ) -> None:
        lanes = int(firsts[-1])
        # Rows a power of two apart would compete for the same cache lines.
        width = (lanes + 7 & -16) + 8
        entries = np.empty((_TILE, width), np.uint64)[:, :lanes]
        self.rows = [*entries]
        self._levels = entries.view(np.int64)
        # For each block: its whole lanes, and the last one, which may be shorter.
        self._places: list[tuple[np.ndarray, int, int]] = []
        for block, flat, first in zip(blocks, out, firsts[:-1].tolist(), strict=True):
            length, count = block.lanes.length, block.lanes.count
            last = (count - 1) * length
            if count > 1:
                whole = flat[:last].reshape(count - 1, length)
                self._places.append((whole, first, first + count - 1))
            ending = flat[last:].reshape(1, -1)
            self._places.append((ending, first + count - 1, first + count))

    def flush(self, first: int) -> None:
        """Transpose the levels of the steps from `first` on into the output."""
        levels = self._levels
        levels <<= 64 - _FREQUENCY
        levels >>= 64 - _FREQUENCY + _LEVEL  # arithmetic: the sign is kept
        for place, start, stop in self._places:
            now = place[:, first : first + _TILE]
            now[:] = levels[: now.shape[1], start:stop].T


def _decode_steps(
    blocks: Sequence[ParsedBlock],
    firsts: np.ndarray,
    states: np.ndarray,
    words: np.ndarray,
    used: np.ndarray,
    tile: _OutputTile,
) -> np.ndarray:
    """Decode into `tile`; return the position of each block in `words`.

    `blocks` has the longest lanes first, `firsts` the first lane of each and their end.
    `states` and `used`, the first word of each block, are changed in place.
    """
    entries = _build_lookup([block.tables for block in blocks])
    changes = _class_changes(blocks, firsts)
    # The three newest branch bits, at bit 12, and above them the class of the lane.
    older = np.zeros((3, len(states)), np.uint64)
    slot = np.empty(len(states), np.uint64)
    low, ramp = np.empty(len(states), bool), np.arange(len(states))
    lengths = [block.lanes.length for block in blocks]
    x, rows, used_now, edges_now = states, tile.rows, used, firsts
    third, second, last = older
    index, open_blocks = slot.view(np.int64), len(blocks)
    marks = {*changes, *lengths, *range(0, lengths[0], _TILE)}
    for k, stop in itertools.pairwise(sorted(marks)):
        if k and k % _TILE == 0:
            tile.flush(k - _TILE)
        if k == lengths[open_blocks - 1]:  # the shortest lanes have ended: drop them
            open_blocks = sum(length > k for length in lengths)
            edges_now, used_now = firsts[: open_blocks + 1], used[:open_blocks]
            lanes = edges_now[-1]
            x, slot, low = x[:lanes], slot[:lanes], low[:lanes]
            third, second, last = third[:lanes], second[:lanes], last[:lanes]
            rows, index = [row[:lanes] for row in rows], slot.view(np.int64)
        for lanes, now in changes.get(k, ()):
            older[:, lanes] &= _Q
            older[:, lanes] |= now
        # The inner loop allocates and converts as little as NumPy allows: states are
        # 64 bits wide only to save conversions.
        for entry in rows[k % _TILE : k % _TILE + stop - k]:
            np.bitwise_and(x, _IN_SLOT, slot)
            np.bitwise_or(slot, last, slot)
            entries.take(index, None, entry, "clip")
            # b[t] = q[t] ^ b[t-2] ^ b[t-3] replaces the oldest bit. The class is in all
            # three operands, so their XOR keeps it once.
            np.bitwise_xor(third, second, third)
            np.bitwise_xor(third, entry, third)
            np.bitwise_and(third, _Q_AND_CLASS, third)
            third, second, last = second, last, third
            # x = f (x >> 12) + place of the slot in the symbol's range.
            np.right_shift(x, _BY_12, x)
            np.right_shift(entry, _TO_FREQUENCY, slot)
            np.multiply(x, slot, x)
            np.bitwise_and(entry, _IN_SLOT, slot)
            np.add(x, slot, x)
            # Lanes below the lowest state each read a word of their own block.
            np.less(x, _LOWEST, low)
            (empty,) = low.nonzero()
            edges = empty.searchsorted(edges_now)
            counts = edges[1:] - edges[:-1]
            place = (used_now - edges[:-1]).repeat(counts)
            place += ramp[: len(place)]
            filled = x.take(empty)
            np.left_shift(filled, _BY_16, filled)
            # Reading past a block's own words is noticed at the end.
            np.bitwise_or(filled, words.take(place, None, None, "clip"), filled)
            x[empty] = filled
            used_now += counts
    tile.flush((lengths[0] - 1) // _TILE * _TILE)
    return used


def _class_changes(
    blocks: Sequence[ParsedBlock], firsts: np.ndarray
) -> dict[int, list[tuple[slice, np.ndarray]]]:
    """Return the lanes that change their class before each step, and the new class."""
    changes: dict[int, list[tuple[slice, np.ndarray]]] = {}
    base, idle = 0, sum(len(block.tables.halves) for block in blocks)
    for block, first in zip(blocks, firsts[:-1], strict=True):
        lanes = block.lanes
        stop = int(first) + lanes.count
        classes = lanes.split_runs(block.classes).astype(np.uint64) + np.uint64(base)
        base += len(block.tables.halves)
        short = lanes.size - (lanes.count - 1) * lanes.length  # of the last lane
        classes[-(-short // lanes.run) :, -1] = idle
        classes <<= np.uint64(_CLASS)
        for row, now in enumerate(classes):
            changes.setdefault(row * lanes.run, []).append((slice(first, stop), now))
        if short % lanes.run:
            ended = np.array([idle << _CLASS], np.uint64)
            changes.setdefault(short, []).append((slice(stop - 1, stop), ended))
    return changes
