"""Encode quantised integers as blocks, by interleaved rANS.

A block is: header; tables, classes and far-out integers, each a zstd frame or as they
are; one 32-bit state a lane; the 16-bit words that the lanes share; raw bits.
`_decode.py` reads it.

References:
    Duda 2013, arXiv:1311.2540 (asymmetric numeral systems);
    Giesen 2014, arXiv:1402.3392 (interleaving).
"""

import struct
from collections.abc import Sequence

import numpy as np

from .._zstd import compress_frame
from ._quantise import GridLevels, LaneLayout, transpose
from ._scales import pack_exponents
from ._tables import LOWEST_STATE, SCALE_BITS, Tables, choose_raw_bits

# u16 lane, u16 run, u8 classes, u8 raw bits and 128 if there are far-out integers, u16
# bytes of the tables. The words take the rest.
HEADER = struct.Struct("<HHBBH")
SOME_FAR = 128
LENGTH = struct.Struct("<I")  # of a part that may be missing, before it
# Of a far-out integer of a trellis and of a uniform grid.
FAR_TYPES = {True: "<i4", False: "<i8"}
# Marks a part that is not compressed; zstd frames begin otherwise.
PLAIN = b"\0"
# Of a lane. A state starts at 2^16 and ends anywhere below 2^32: of its 4 bytes it
# carries most of one itself (measured, 2 to 5 bits a number).
STATE_BYTES = 3.25
# Steps whose table entries are looked up at once.
_TILE = 32


def encode(blocks: Sequence[GridLevels]) -> list[bytes]:
    """Code the integers of each block at close to their entropy."""
    found = [_entries(block) for block in blocks]
    streams = _trellis_encode_lanes(blocks, [entries for entries, _ in found])
    return [
        _assemble(block, far, *stream)
        for block, (_, far), stream in zip(blocks, found, streams, strict=True)
    ]


def _entries(block: GridLevels) -> tuple[np.ndarray, np.ndarray]:
    return block.tables.entries(block.flat, block.lanes.repeat(block.classes))


def _assemble(
    block: GridLevels, far: np.ndarray, states: np.ndarray, words: np.ndarray
) -> bytes:
    lanes, tables = block.lanes, block.tables
    classes, raw_bits = len(tables.halves), tables.raw_bits
    parts = [_pack_part(tables.packed)]
    if classes > 1:
        parts.append(_pack_part(block.classes.tobytes()))
    if len(far):
        raw_bits |= SOME_FAR
        parts.append(_pack_part(far.astype(FAR_TYPES[tables.trellis]).tobytes()))
    head = HEADER.pack(lanes.length, lanes.run, classes, raw_bits, len(parts[0]))
    parts[1:] = [LENGTH.pack(len(part)) + part for part in parts[1:]]
    raw = _pack_raw_bits(block.flat, tables)
    if tables.raw_bits and not tables.trellis:
        parts.append(LENGTH.pack(len(raw)))
    scales = b"" if block.exponents is None else pack_exponents(block.exponents)
    return b"".join(
        [scales, head, *parts, states.astype("<u4").tobytes(), words.tobytes(), raw]
    )


def _pack_part(plain: bytes) -> bytes:
    return min(compress_frame(plain), PLAIN + plain, key=len)


def count_coded_bits(block: GridLevels) -> tuple[float, int]:
    """Return about the bits of the integers alone, and how many symbols occur."""
    tables = block.tables
    entries, far = _entries(block)
    counts = np.bincount(entries, minlength=tables.frequencies.size)
    used = counts > 0
    bits = float((counts[used] * tables.bits().reshape(-1)[used]).sum())
    bits += 32.0 * len(far) + tables.raw_bits * block.lanes.size
    return bits, int(used.sum())


def count_class_bytes(classes: np.ndarray) -> int:
    """Return how long the classes of the runs of a block are in it."""
    return LENGTH.size + len(_pack_part(classes.tobytes())) if classes.any() else 0


def estimate_side_bytes(tables: Tables) -> float:
    """Estimate the bytes of a block besides its integers, classes and lanes."""
    plain = len(tables.packed)
    return HEADER.size + min(12 + 0.65 * plain, len(PLAIN) + plain)


def estimate_uniform_bytes(numbers: np.ndarray, row: int) -> float:
    """Estimate the length of a block of a uniform grid, without coding, by 1%."""
    raw_bits, bits = choose_raw_bits(numbers[numbers != 0], numbers.size)
    lanes = LaneLayout.of_rows(numbers.size, row)
    # The lowest half, how many there are, and symbols for far-out integers.
    head = HEADER.size + len(PLAIN) + 7 + LENGTH.size * bool(raw_bits)
    return head + bits / 8 + STATE_BYTES * lanes.count


def _pack_raw_bits(flat: np.ndarray, tables: Tables) -> bytes:
    lowest = 2 if tables.trellis else 0
    if not tables.trellis:
        flat = flat[flat != 0]
    planes = [
        ((flat >> (lowest + bit)) & 1).astype(np.uint8)
        for bit in range(tables.raw_bits)
    ]
    return np.packbits(np.concatenate([np.zeros(0, np.uint8), *planes])).tobytes()


def _trellis_encode_lanes(
    blocks: Sequence[GridLevels], entries: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Code the symbols of all blocks, whose bytes do not depend on each other.

    Returns the states of each block's lanes, uint32, and its words, 16 bits each.
    """
    order = sorted(range(len(blocks)), key=lambda i: -blocks[i].lanes.length)
    ranked = [blocks[i] for i in order]
    ends = np.cumsum([block.lanes.count for block in ranked])
    frequencies, starts, index = _lookup(ranked, [entries[i] for i in order])
    # How many lanes still have a number at each step.
    lengths = np.repeat(
        [-block.lanes.length for block in ranked],
        [block.lanes.count for block in ranked],
    )
    active_lanes = lengths.searchsorted(-np.arange(len(index))).tolist()
    # float64 holds these integers exactly, and divides faster than 64-bit integers do.
    states = np.full(ends[-1], float(LOWEST_STATE))
    words: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    # The last symbols first, because rANS is a stack (Duda 2013, arXiv:1311.2540).
    for first in range((len(index) - 1) // _TILE * _TILE, -1, -_TILE):
        which = index[first : first + _TILE]
        frequency, start = frequencies.take(which), starts.take(which)
        limit = frequency * (1 << 32 - SCALE_BITS)
        rest = (1 << SCALE_BITS) - frequency
        for row in range(len(which) - 1, -1, -1):
            active = active_lanes[first + row]
            x, f = states[:active], frequency[row, :active]
            full = (x >= limit[row, :active]).nonzero()[0]
            large = x[full].astype(np.uint32)
            words.append((large & np.uint32(0xFFFF)).astype("<u2"))
            owners.append(full)
            x[full] = large >> np.uint32(16)
            # x += x // f * (2^12 - f) + start. Exact: a quotient of integers below 2^32
            # and 2^12 is never rounded up to another integer in 53 bits.
            quotient = np.floor(x / f)
            quotient *= rest[row, :active]
            x += quotient
            x += start[row, :active]
    return _split_by_block(order, ends, states, words[::-1], owners[::-1])


def _lookup(
    blocks: Sequence[GridLevels], entries: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return frequency and start of every entry, and the entry of each number.

    The last entry changes no state: it is for lanes that have ended.
    """
    tables = [block.tables.frequencies.reshape(-1, 256) for block in blocks]
    every = np.concatenate(tables)
    starts = np.append(np.cumsum(every, axis=1) - every, 0.0)
    frequencies = np.append(every, float(1 << SCALE_BITS))
    count = sum(block.lanes.count for block in blocks)
    index = np.full((blocks[0].lanes.length, count), every.size, np.int32)
    at = base = 0
    for block, flat in zip(blocks, entries, strict=True):
        lanes = block.lanes
        here = index[: lanes.length, at : at + lanes.count]
        whole = lanes.size // lanes.length  # lanes that do not end early
        rows = flat[: whole * lanes.length].reshape(whole, lanes.length)
        transpose(rows, here[:, :whole])
        if base:
            here[:, :whole] += base
        if whole < lanes.count:
            short = flat[whole * lanes.length :]
            here[: len(short), -1] = short + np.int32(base)
        at += lanes.count
        base += block.tables.frequencies.size
    return frequencies, starts, index


def _split_by_block(
    order: Sequence[int],
    ends: np.ndarray,
    states: np.ndarray,
    words: Sequence[np.ndarray],
    owners: Sequence[np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Divide states and words among the blocks; words keep their order."""
    every, lane = np.concatenate(words), np.concatenate(owners)
    block = np.searchsorted(ends, lane, side="right").astype(np.int16)
    every = every[np.argsort(block, kind="stable")]
    counts = np.cumsum(np.bincount(block, minlength=len(ends)))
    final = np.split(states.astype(np.uint32), ends[:-1])
    pairs = zip(final, np.split(every, counts[:-1]), strict=True)
    by_index = dict(zip(order, pairs, strict=True))
    return [by_index[i] for i in range(len(order))]
