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

from ._trellis_lanes import Coded
from ._trellis_push import push
from ._trellis_tables import Tables

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
