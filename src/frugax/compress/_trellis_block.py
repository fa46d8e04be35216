"""The trellis codec's blocks: whole numbers of a trellis, entropy coded.

Numbers are cut into lanes of equal length; lane by lane they walk the trellis of
`_trellis.py` from state 0, and an rANS coder of their own codes them with the tables of
`_trellis_tables.py`. All lanes take a step at once, one NumPy operation for all.

A block is: header; tables, classes and far-out numbers, each a zstd frame; one 32-bit
state a lane; the 16-bit words that lanes share; raw bits.
"""

import itertools
import struct
from typing import Any

import numpy as np
import zstandard

from frugax.errors import CorruptFileError

from ._quantised import MOST_LEVEL, Step, values_of
from ._trellis_lanes import LANE, Coded, Lanes
from ._trellis_tables import MOST_CLASSES, SCALE_BITS, Tables, unpack
from ._zstd import unzstd

# u32 lane, u32 run, u8 classes, u8 raw bits; u32 bytes of tables, classes and far-out
# numbers; u32 words.
_HEADER = struct.Struct("<IIBBIIII")
_LOWEST = 1 << 16  # states live in [2^16, 2^32) and move 16 bits at a time


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
    head = _HEADER.pack(
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
    return _HEADER.size + 12 + 0.65 * len(tables.packed)


def decode(
    block: memoryview, step: Step, dtype: "np.dtype[Any]", size: int
) -> np.ndarray:
    """Give back `size` values.

    Raises:
        CorruptFileError: this is no such block.
    """
    levels, index = _decode_levels(block, size)
    values = values_of(levels, step, dtype)
    return values if index is None else np.take(values, index)


def integers(block: memoryview, dtype: "np.dtype[Any]", size: int) -> np.ndarray:
    """Give back `size` levels for weights of a dtype, which all are the same here.

    Raises:
        CorruptFileError: this is no such block.
    """
    levels, index = _decode_levels(block, size)
    return levels if index is None else np.take(levels, index)


def _push(coded: Coded, symbols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Code the symbols, the last ones first, as rANS is a stack."""
    lanes, frequencies = coded.lanes, coded.tables.frequencies
    start = np.cumsum(frequencies, axis=2) - frequencies
    # Exact: a quotient of whole numbers below 2^32 and 2^12 is never rounded to a
    # whole number that it is not, in 53 bits.
    table = np.stack([frequencies, start], axis=-1).astype(np.float64).reshape(-1, 2)
    spread = lanes.spread(coded.classes).astype(np.intp) * 512
    states = np.full(lanes.count, float(_LOWEST))
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


def _decode_levels(
    block: memoryview, size: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """The levels; or, where few are possible, a list of these and indices into it.

    Raises:
        CorruptFileError: this is no such block.
    """
    if len(block) < _HEADER.size:
        raise CorruptFileError("a trellis-coded block is cut off.")
    head = _HEADER.unpack_from(block)
    length, run, count, raw_bits, table_bytes, class_bytes, far_bytes, word_count = head
    # A longer lane than any writer makes could ask for minutes: each step of it is one
    # of NumPy's, for however few lanes.
    if not (1 <= run <= length <= 2 * LANE and length % run == 0):
        raise CorruptFileError("a trellis-coded block contradicts its own header.")
    lanes = Lanes(size, length, run)
    parts = [_HEADER.size, table_bytes, class_bytes, far_bytes]
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
    far = np.zeros(0, np.int64)
    if far_bytes:
        plain = unzstd(bytes(pieces[2]), most=4 * size)
        if len(plain) % 4:
            raise CorruptFileError("a trellis-coded block has a damaged list.")
        far = np.frombuffer(plain, "<i4").astype(np.int64)
    states = np.frombuffer(pieces[3], "<u4").astype(np.uint32)
    words = np.frombuffer(pieces[4], "<u2").astype(np.uint32)
    index = lanes.join(_pop(states, words, lanes, tables, lanes.spread(classes)))
    return _levels(index, tables, far, pieces[5], size)


def _pop(
    states: np.ndarray,
    words: np.ndarray,
    lanes: Lanes,
    tables: Tables,
    classes: np.ndarray,
) -> np.ndarray:
    """Which class, parity and symbol each number has: `class << 9 | odd << 8 | symbol`.

    Raises:
        CorruptFileError: the words do not end with the numbers.
    """
    entries = _entries(tables.frequencies)
    out = np.zeros((lanes.length, lanes.count), np.uint16)
    context = np.empty(lanes.count, np.uint32)
    older = np.zeros((3, lanes.count), np.uint32)  # branch bits, at bit 12
    slot, entry, scratch = (np.empty(lanes.count, np.uint32) for _ in range(3))
    short = lanes.size - (lanes.count - 1) * lanes.length
    at, x = 0, states
    for k in range(lanes.length):
        if k % lanes.run == 0:
            context = classes[k // lanes.run].astype(np.uint32) << np.uint32(13)
        if k == short and short < lanes.length:  # the last lane is at its end
            x, slot, entry, scratch = x[:-1], slot[:-1], entry[:-1], scratch[:-1]
            context, older = context[:-1], older[:, :-1]
        elif k > short:
            context = context[: len(x)]
        last, second, third = older[(k - 1) % 3], older[(k - 2) % 3], older[k % 3]
        np.bitwise_and(x, 4095, out=slot)
        np.bitwise_or(context, last, out=scratch)
        np.bitwise_or(slot, scratch, out=slot)
        entries.take(slot, out=entry, mode="clip")
        np.right_shift(scratch, 4, out=scratch)
        np.right_shift(entry, 24, out=slot)
        np.bitwise_or(scratch, slot, out=out[k, : len(x)], casting="unsafe")
        # The branch bit takes the place of the oldest: q ^ b[t-2] ^ b[t-3].
        np.left_shift(slot, 12, out=slot)
        np.bitwise_xor(third, second, out=third)
        np.bitwise_xor(third, slot, out=third)
        np.bitwise_and(third, 4096, out=third)
        np.right_shift(x, 12, out=x)
        np.bitwise_and(entry, 4095, out=slot)
        np.add(slot, 1, out=slot)
        np.multiply(x, slot, out=x)
        np.right_shift(entry, 12, out=entry)
        np.bitwise_and(entry, 4095, out=entry)
        np.add(x, entry, out=x)
        empty = np.flatnonzero(x < _LOWEST)
        new = words[at : at + len(empty)]
        if len(new) < len(empty):
            raise CorruptFileError("a trellis-coded block ends too early.")
        x[empty] = (x[empty] << np.uint32(16)) | new
        at += len(empty)
    # The coder began with every state at its lowest: a check that comes for free.
    if at != len(words) or (states != _LOWEST).any():
        raise CorruptFileError("a trellis-coded block does not end where it should.")
    return out


def _entries(frequencies: np.ndarray) -> np.ndarray:
    """For every slot of every table: `symbol << 24 | inside << 12 | frequency - 1`."""
    flat = frequencies.reshape(-1, 256)
    symbol = np.tile(np.arange(256), len(flat))
    start = np.cumsum(flat, axis=1) - flat
    owner = np.repeat(np.arange(flat.size), flat.reshape(-1))
    slots = np.arange(len(owner)) & ((1 << SCALE_BITS) - 1)
    inside = slots - start.reshape(-1)[owner]
    packed = symbol[owner] << 24 | inside << 12 | flat.reshape(-1)[owner] - 1
    return packed.astype(np.uint32)


def _levels(
    index: np.ndarray, tables: Tables, far: np.ndarray, raw: memoryview, size: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """From what `_pop` gave, the far-out numbers and raw bits to levels.

    Raises:
        CorruptFileError: there are more or fewer far-out numbers than symbols say.
    """
    classes, odd, symbol = np.indices((len(tables.halves), 2, 256)).reshape(3, -1)
    half = (symbol >> 1) + tables.lowest[classes]
    lut = (half << (2 + tables.raw_bits)) + ((symbol & 1) << 1) + odd
    is_far = symbol >> 1 >= tables.halves[classes]
    if not tables.raw_bits and not len(far):
        if is_far.any() and is_far[index].any():
            raise CorruptFileError("a trellis-coded block lacks a far-out number.")
        return lut, index
    levels = lut[index]
    levels += _unpack_raw(raw, tables.raw_bits, size) << 2
    there = np.flatnonzero(is_far[index])
    if len(there) != len(far):
        raise CorruptFileError("a trellis-coded block lacks a far-out number.")
    levels[there] = far
    if np.abs(levels).max() > MOST_LEVEL[4]:
        raise CorruptFileError(f"a level is beyond {MOST_LEVEL[4]}.")
    return levels, None


def _pack_raw(levels: np.ndarray, bits: int) -> bytes:
    planes = [((levels >> (2 + bit)) & 1).astype(np.uint8) for bit in range(bits)]
    return np.packbits(np.concatenate([np.zeros(0, np.uint8), *planes])).tobytes()


def _unpack_raw(packed: memoryview, bits: int, size: int) -> np.ndarray:
    planes = np.unpackbits(np.frombuffer(packed, np.uint8), count=bits * size)
    raw = np.zeros(size, np.int64)
    for bit, plane in enumerate(planes.reshape(bits, size)):
        raw |= plane.astype(np.int64) << bit
    return raw
