"""The trellis codec's blocks, written: whole numbers of a trellis, entropy coded.

Numbers are cut into lanes of equal length; lane by lane they walk the trellis of
`_trellis.py` from state 0, and an rANS coder of their own codes them with the tables of
`_trellis_tables.py`. All lanes take a step at once, one NumPy operation for all.

A block is: header; tables, classes and far-out numbers, each a zstd frame; one 32-bit
state a lane; the 16-bit words that lanes share; raw bits. It is read in
`_trellis_decode.py`.
"""

import struct
from collections.abc import Sequence

import numpy as np
import zstandard

from ._quantise import Coded
from ._tables import LOWEST_STATE, SCALE_BITS, Tables

# u32 lane, u32 run, u8 classes, u8 raw bits; u32 bytes of tables, classes and far-out
# numbers; u32 words.
HEADER = struct.Struct("<IIBBIIII")


def encode(blocks: Sequence[Coded]) -> list[bytes]:
    """Code the numbers of each block at close to their entropy."""
    classes = [np.repeat(c.classes, c.lanes.run)[: c.lanes.size] for c in blocks]
    symbols = [
        c.tables.symbols(c.flat, of_each)
        for c, of_each in zip(blocks, classes, strict=True)
    ]
    return [
        _joined(*parts)
        for parts in zip(blocks, classes, symbols, push(blocks, symbols), strict=True)
    ]


def _joined(
    coded: Coded,
    classes: np.ndarray,
    symbols: np.ndarray,
    pushed: tuple[np.ndarray, np.ndarray],
) -> bytes:
    lanes, tables, flat = coded.lanes, coded.tables, coded.flat
    far = flat[symbols >= 2 * tables.halves[classes]]
    parts = [
        zstandard.ZstdCompressor(level=19).compress(part) if part else b""
        for part in (
            tables.packed,
            coded.classes.tobytes() if coded.classes.any() else b"",
            far.astype("<i4").tobytes(),
        )
    ]
    states, words = pushed
    head = HEADER.pack(
        *(lanes.length, lanes.run, len(tables.halves), tables.raw_bits),
        *(len(part) for part in parts),
        len(words),
    )
    raw = _pack_raw(flat, tables.raw_bits)
    return b"".join(
        [head, *parts, states.astype("<u4").tobytes(), words.tobytes(), raw]
    )


def coded_bits(coded: Coded) -> tuple[float, int]:
    """About what the numbers alone take, and how many symbols occur."""
    lanes, tables = coded.lanes, coded.tables
    flat = coded.flat
    classes = np.repeat(coded.classes, lanes.run)[: lanes.size]
    symbols = tables.symbols(flat, classes)
    index = (classes.astype(np.intp) * 2 + (flat & 1)) * 256 + symbols
    counts = np.bincount(index, minlength=tables.frequencies.size)
    used = counts > 0
    bits = float((counts[used] * tables.bits().reshape(-1)[used]).sum())
    far = int((symbols >= 2 * tables.halves[classes]).sum())
    return bits + 32.0 * far + tables.raw_bits * lanes.size, int(used.sum())


def side_bytes(tables: Tables) -> float:
    """About what a block needs besides its numbers, classes and lanes."""
    return HEADER.size + 12 + 0.65 * len(tables.packed)


def _pack_raw(levels: np.ndarray, bits: int) -> bytes:
    planes = [((levels >> (2 + bit)) & 1).astype(np.uint8) for bit in range(bits)]
    return np.packbits(np.concatenate([np.zeros(0, np.uint8), *planes])).tobytes()


# Steps whose table entries are looked up in one go.
_TILE = 32


def push(
    blocks: Sequence[Coded], symbols: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Code the symbols, the last ones first, as rANS is a stack.

    Args:
        blocks: what is coded; no block's bytes depend on the others.
        symbols: of each number of each block, flat.

    Returns:
        The states of each block's lanes, uint32, and its words, 16 bits each.
    """
    order = sorted(range(len(blocks)), key=lambda i: -blocks[i].lanes.length)
    ranked = [blocks[i] for i in order]
    ends = np.cumsum([block.lanes.count for block in ranked])
    frequencies, starts, index = _tables(ranked, [symbols[i] for i in order])
    # How many lanes still have a number at each step.
    lengths = np.repeat(
        [-block.lanes.length for block in ranked],
        [block.lanes.count for block in ranked],
    )
    actives = lengths.searchsorted(-np.arange(len(index))).tolist()
    states = np.full(ends[-1], float(LOWEST_STATE))
    words: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    for first in range((len(index) - 1) // _TILE * _TILE, -1, -_TILE):
        which = index[first : first + _TILE]
        frequency, start = frequencies.take(which), starts.take(which)
        limit = frequency * (1 << 32 - SCALE_BITS)
        rest = (1 << SCALE_BITS) - frequency
        for row in range(len(which) - 1, -1, -1):
            active = actives[first + row]
            x, f = states[:active], frequency[row, :active]
            full = (x >= limit[row, :active]).nonzero()[0]
            given = x[full].astype(np.uint32)
            words.append((given & np.uint32(0xFFFF)).astype("<u2"))
            owners.append(full)
            x[full] = given >> np.uint32(16)
            # Exact: a quotient of whole numbers below 2^32 and 2^12 is never rounded
            # to a whole number that it is not, in 53 bits.
            above = np.floor(x / f)
            above *= rest[row, :active]
            x += above
            x += start[row, :active]
    return _by_block(order, ends, states, words[::-1], owners[::-1])


def _tables(
    blocks: Sequence[Coded], symbols: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frequency and start of every symbol of every table, and which each number has.

    The last entry changes no state: for lanes that have ended.
    """
    each = [block.tables.frequencies.reshape(-1, 256) for block in blocks]
    every = np.concatenate(each)
    starts = np.append(np.cumsum(every, axis=1) - every, 0.0)
    frequencies = np.append(every, float(1 << SCALE_BITS))
    count = sum(block.lanes.count for block in blocks)
    index = np.full((blocks[0].lanes.length, count), every.size, np.int32)
    at = base = 0
    for block, of_block in zip(blocks, symbols, strict=True):
        lanes = block.lanes
        classes = np.repeat(block.classes, lanes.run)[: lanes.size]
        flat = (classes.astype(np.int32) * 2 + (block.flat & 1)) * 256 + of_block + base
        here = index[: lanes.length, at : at + lanes.count]
        whole = lanes.size // lanes.length  # lanes that do not end early
        full = flat[: whole * lanes.length].reshape(whole, lanes.length)
        here[:, :whole] = full.T
        if whole < lanes.count:
            short = flat[whole * lanes.length :]
            here[: len(short), -1] = short
        at += lanes.count
        base += block.tables.frequencies.size
    return frequencies, starts, index


def _by_block(
    order: Sequence[int],
    ends: np.ndarray,
    states: np.ndarray,
    words: Sequence[np.ndarray],
    owners: Sequence[np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each block has of the states and of the words, these in their order."""
    every, lane = np.concatenate(words), np.concatenate(owners)
    block = np.searchsorted(ends, lane, side="right").astype(np.int16)
    every = every[np.argsort(block, kind="stable")]
    counts = np.cumsum(np.bincount(block, minlength=len(ends)))
    final = states.astype(np.uint32)
    found = dict(
        zip(
            order,
            zip(np.split(final, ends[:-1]), np.split(every, counts[:-1]), strict=True),
            strict=True,
        )
    )
    return [found[i] for i in range(len(order))]
