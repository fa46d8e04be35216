"""The trellis codec's blocks, written: whole numbers of a trellis, entropy coded.

Numbers are cut into lanes of equal length; lane by lane they walk the trellis of
`_trellis.py` from state 0, and an rANS coder of their own codes them with the tables of
`_trellis_tables.py`. All lanes take a step at once, one NumPy operation for all.

A block is: header; tables, classes and far-out numbers, each a zstd frame; one 32-bit
state a lane; the 16-bit words that lanes share; raw bits. It is read in
`_trellis_decode.py`.
"""

import struct

import numpy as np
import zstandard

from ._trellis_lanes import Coded
from ._trellis_tables import SCALE_BITS, Tables
from ._trellis_walk import LOWEST

# u32 lane, u32 run, u8 classes, u8 raw bits; u32 bytes of tables, classes and far-out
# numbers; u32 words.
HEADER = struct.Struct("<IIBBIIII")


def encode(coded: Coded) -> bytes:
    """Code numbers at close to their entropy."""
    lanes, tables = coded.lanes, coded.tables
    flat = coded.flat
    classes = np.repeat(coded.classes, lanes.run)[: lanes.size]
    symbols = tables.symbols(flat, classes)
    far = flat[symbols >= 2 * tables.halves[classes]]
    states, words = _push(coded, lanes.split(symbols))
    parts = [
        zstandard.ZstdCompressor(level=19).compress(part) if part else b""
        for part in (
            tables.packed,
            coded.classes.tobytes() if coded.classes.any() else b"",
            far.astype("<i4").tobytes(),
        )
    ]
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


def _push(coded: Coded, symbols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Code the symbols, the last ones first, as rANS is a stack."""
    lanes, frequencies = coded.lanes, coded.tables.frequencies
    start = np.cumsum(frequencies, axis=2) - frequencies
    # Exact: a quotient of whole numbers below 2^32 and 2^12 is never rounded to a
    # whole number that it is not, in 53 bits.
    table = np.stack([frequencies, start], axis=-1).astype(np.float64).reshape(-1, 2)
    spread = lanes.spread(coded.classes).astype(np.intp) * 512
    states = np.full(lanes.count, float(LOWEST))
    groups: list[np.ndarray] = []
    short = lanes.size - (lanes.count - 1) * lanes.length
    for k in range(lanes.length - 1, -1, -1):
        active = lanes.count - (k >= short)
        index = spread[k // lanes.run, :active] + symbols[k, :active]
        index += (coded.levels[k, :active] & 1) * 256
        f, first = table[index].T
        x = states[:active]
        full = x >= f * (1 << 32 - SCALE_BITS)
        if full.any():
            words = x[full].astype(np.uint32)
            groups.append((words & np.uint32(0xFFFF)).astype("<u2"))
            x[full] = words >> np.uint32(16)
        above = np.floor(x / f)
        x += above * ((1 << SCALE_BITS) - f) + first
    words = np.concatenate([np.zeros(0, "<u2"), *reversed(groups)])
    return states.astype(np.uint32), words.astype("<u2")


def _pack_raw(levels: np.ndarray, bits: int) -> bytes:
    planes = [((levels >> (2 + bit)) & 1).astype(np.uint8) for bit in range(bits)]
    return np.packbits(np.concatenate([np.zeros(0, np.uint8), *planes])).tobytes()
