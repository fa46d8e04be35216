"""Entropy coder of the uniform and bit-plane codecs: interleaved rANS in NumPy.

Many coders ("lanes") run side by side, one NumPy operation advancing all of them, and
share one stream of 16-bit words. All arithmetic is on integers, so every machine writes
the same bytes.

Symbols far apart would need a long table, so each number is split into `low_bits` raw
bits and a coded rest. The split with the shortest block is used.

A block is: header, frequency table, one 32-bit state a lane, the words, the raw bits.

References:
    Duda 2013, arXiv:1311.2540 (asymmetric numeral systems);
    Giesen 2014, arXiv:1402.3392 (interleaving).
"""

import struct

import numpy as np
import zstandard

from frugax.errors import CorruptFileError

from ._zstd import decompress_frame

# int64 low, u8 low_bits, u8 scale_bits, u16 alphabet, u16 lanes, u32 table, u32 words.
_HEADER = struct.Struct("<qBBHHII")
_MAX_ALPHABET = 1 << 14
_MAX_SCALE_BITS = 15
# Each lane costs 4 bytes and a pass costs the same for 1 lane or 1,000: 2,048 passes
# keep the lanes under 0.3% of a block of 4-bit symbols.
_PASSES = 2048
_MAX_LANES = 4096
# States stay in [2^16, 2^32), so renormalising moves exactly one 16-bit word.
_LOWEST_STATE = 1 << 16
# Below this many lanes plain Python integers beat NumPy, whose cost per operation does
# not shrink with the lanes. Both loops give the same bytes.
_FEW_LANES = 16


def encode(numbers: np.ndarray) -> bytes:
    """Code integers at close to their entropy."""
    low = int(numbers.min())
    offsets = (numbers - low).astype(np.uint64)
    low_bits, counts = _choose_split(offsets)
    symbols = (offsets >> np.uint64(low_bits)).astype(np.intp)
    scale_bits = _choose_scale_bits(counts)
    frequencies = _normalise(counts, scale_bits)
    lanes = _count_lanes(len(symbols))
    push = _push_scalar if lanes < _FEW_LANES else _push_lanes
    states, words = push(symbols, frequencies, scale_bits, lanes)
    table = _pack_table(frequencies)
    head = _HEADER.pack(
        *(low, low_bits, scale_bits, len(counts), len(states), len(table), len(words))
    )
    raw = _pack_low_bits(offsets, low_bits)
    return b"".join([head, table, states.astype("<u4").tobytes(), words.tobytes(), raw])


def estimate_bytes(numbers: np.ndarray) -> float:
    """Estimate the length of `encode(numbers)`, without coding, to a few bytes."""
    low = int(numbers.min())
    offsets = (numbers - low).astype(np.uint64)
    low_bits, counts = _choose_split(offsets)
    scale_bits = _choose_scale_bits(counts)
    frequencies = _normalise(counts, scale_bits)
    used = counts > 0
    bits = scale_bits - np.log2(frequencies[used])
    coded = float((counts[used] * bits).sum()) / 8
    # A state starts at 2^16 and ends anywhere below 2^32: of its 4 bytes it carries
    # most of one itself (measured, 2 to 5 bits a number).
    states = 3.25 * _count_lanes(len(numbers))
    raw = (low_bits * len(numbers) + 7) // 8
    return _HEADER.size + len(_pack_table(frequencies)) + states + coded + raw


def decode(block: bytes | memoryview, size: int) -> np.ndarray:
    """Return the `size` numbers that `encode` coded, as int64."""
    block = memoryview(block)
    if len(block) < _HEADER.size:
        raise CorruptFileError("an entropy-coded block is cut off.")
    head = _HEADER.unpack_from(block)
    low, low_bits, scale_bits, alphabet, lanes, table_bytes, word_count = head
    raw_bytes = (low_bits * size + 7) // 8
    parts = [_HEADER.size, table_bytes, 4 * lanes, 2 * word_count, raw_bytes]
    if (
        sum(parts) != len(block)
        or lanes != _count_lanes(size)
        or not 1 <= alphabet <= _MAX_ALPHABET
        or not low_bits < 64
        or not scale_bits <= _MAX_SCALE_BITS
    ):
        raise CorruptFileError("an entropy-coded block contradicts its own header.")
    ends = np.cumsum(parts)
    frequencies = _unpack_table(block[ends[0] : ends[1]], alphabet, scale_bits)
    states = np.frombuffer(block[ends[1] : ends[2]], "<u4").astype(np.uint32)
    words = np.frombuffer(block[ends[2] : ends[3]], "<u2").astype(np.uint32)
    pop = _pop_scalar if lanes < _FEW_LANES else _pop_lanes
    symbols, final, used = pop(states, words, frequencies, scale_bits, size)
    # The encoder started every state at its lowest value: a free integrity check.
    if used != len(words) or (final != _LOWEST_STATE).any():
        raise CorruptFileError("an entropy-coded block does not end where it should.")
    offsets = symbols.astype(np.uint64) << np.uint64(low_bits)
    offsets |= _unpack_low_bits(block[ends[3] :], low_bits, size)
    return offsets.view(np.int64) + np.int64(low)


def _count_lanes(size: int) -> int:
    return min(_MAX_LANES, max(1, size // _PASSES))


def _choose_split(offsets: np.ndarray) -> tuple[int, np.ndarray]:
    """Choose how many low bits stay raw; count each remaining symbol."""
    span_bits = int(offsets.max()).bit_length()
    fewest = max(0, span_bits - (_MAX_ALPHABET.bit_length() - 1))
    counts = np.bincount((offsets >> np.uint64(fewest)).astype(np.intp))
    best: tuple[float, int, np.ndarray] | None = None
    for low_bits in range(fewest, min(span_bits, fewest + 10) + 1):
        share = counts[counts > 0] / len(offsets)
        entropy = float(-(share * np.log2(share)).sum())
        # About ten bits of table for each symbol that occurs.
        cost = len(offsets) * (entropy + low_bits) + 10 * len(share)
        if best is None or cost < best[0]:
            best = cost, low_bits, counts
        # One more raw bit merges neighbouring symbols in pairs.
        counts = np.concatenate([counts, [0] * (len(counts) % 2)])
        counts = counts.reshape(-1, 2).sum(axis=1)
    assert best is not None  # the range holds at least `fewest`
    return best[1], best[2]


def _choose_scale_bits(counts: np.ndarray) -> int:
    # Finer frequencies fit better but need a longer table: two bits over the alphabet.
    occurring = int(np.count_nonzero(counts))
    wanted = max(occurring.bit_length() + 2, int(counts.sum()).bit_length())
    return min(_MAX_SCALE_BITS, max(8, wanted))


def _normalise(counts: np.ndarray, scale_bits: int) -> np.ndarray:
    """Scale counts to sum to `2^scale_bits`, at least 1 for every occurring symbol."""
    total = 1 << scale_bits
    exact = counts * (total / counts.sum())
    scaled = np.where(counts > 0, np.maximum(1, np.floor(exact)), 0).astype(np.int64)
    surplus = int(scaled.sum()) - total
    if surplus < 0:  # give to those that lost most by rounding down
        order = np.argsort(scaled - exact, kind="stable")
        order = order[counts[order] > 0]
        scaled[order[np.arange(-surplus) % len(order)]] += 1
    while surplus > 0:  # the floors of 1 took too much: the largest give it back
        largest = int(np.argmax(scaled))
        taken = min(surplus, max(1, int(scaled[largest]) // 8))
        scaled[largest] -= taken
        surplus -= taken
    return scaled


def _pack_table(frequencies: np.ndarray) -> bytes:
    """Pack frequencies as LEB128 (7-bit groups, low first), by zstd if shorter."""
    low, high = frequencies & 127, frequencies >> 7
    second, third = high & 127, high >> 7
    columns = np.stack(
        [low | (high > 0) * 128, second | (third > 0) * 128, third], axis=1
    )
    keep = np.stack([np.ones_like(low) > 0, high > 0, third > 0], axis=1)
    plain = columns[keep].astype(np.uint8).tobytes()
    packed = zstandard.ZstdCompressor(level=9).compress(plain)
    if len(packed) < len(plain):
        return b"\1" + packed
    return b"\0" + plain


def _unpack_table(packed: memoryview, alphabet: int, scale_bits: int) -> np.ndarray:
    plain = bytes(packed[1:])
    if packed[:1] == b"\1":
        plain = decompress_frame(plain, max_bytes=3 * alphabet)
    values: list[int] = []
    value = shift = 0
    for byte in plain:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    frequencies = np.array(values, np.int64)
    total = 1 << scale_bits
    if shift or len(values) != alphabet or int(frequencies.sum()) != total:
        raise CorruptFileError("an entropy-coded block has a damaged table.")
    return frequencies


def _pack_low_bits(offsets: np.ndarray, low_bits: int) -> bytes:
    # One run of bits for all planes, so that only its end is padded to a byte.
    planes = [
        ((offsets >> np.uint64(bit)) & np.uint64(1)).astype(np.uint8)
        for bit in range(low_bits)
    ]
    return np.packbits(np.concatenate([np.zeros(0, np.uint8), *planes])).tobytes()


def _unpack_low_bits(packed: memoryview, low_bits: int, size: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=low_bits * size)
    low = np.zeros(size, np.uint64)
    for bit, plane in enumerate(bits.reshape(low_bits, size)):
        low |= plane.astype(np.uint64) << np.uint64(bit)
    return low


# Encoding, C(x, s) = (x // f_s << scale_bits) + x % f_s + start_s, runs backwards,
# because rANS is a stack: decoding pops the symbols in their order. Number i belongs to
# lane i % lanes, so the symbols of one step of all lanes are neighbours.


def _push_scalar(
    symbols: np.ndarray, frequencies: np.ndarray, scale_bits: int, lanes: int
) -> tuple[np.ndarray, np.ndarray]:
    frequency = frequencies.tolist()
    start = (np.cumsum(frequencies) - frequencies).tolist()
    states, words = [_LOWEST_STATE] * lanes, []
    for i, symbol in zip(
        range(len(symbols) - 1, -1, -1), reversed(symbols.tolist()), strict=True
    ):
        x, f = states[i % lanes], frequency[symbol]
        # Renormalise first, so that the new state fits in 32 bits.
        if x >= f << (32 - scale_bits):
            words.append(x & 0xFFFF)
            x >>= 16
        quotient, remainder = divmod(x, f)
        states[i % lanes] = (quotient << scale_bits) + remainder + start[symbol]
    return np.array(states, np.uint64), np.array(words[::-1], "<u2")


def _pop_scalar(
    states: np.ndarray,
    words: np.ndarray,
    frequencies: np.ndarray,
    scale_bits: int,
    size: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    slots = np.repeat(np.arange(len(frequencies)), frequencies).tolist()
    frequency = frequencies.tolist()
    start = (np.cumsum(frequencies) - frequencies).tolist()
    mask, lanes, used = (1 << scale_bits) - 1, len(states), 0
    current, stream = states.tolist(), words.tolist()
    symbols: list[int] = []
    for i in range(size):
        x = current[i % lanes]
        slot = x & mask
        symbol = slots[slot]
        symbols.append(symbol)
        x = frequency[symbol] * (x >> scale_bits) + slot - start[symbol]
        if x < _LOWEST_STATE:
            if used == len(stream):
                raise CorruptFileError("an entropy-coded block ends too early.")
            x = x << 16 | stream[used]
            used += 1
        current[i % lanes] = x
    return np.array(symbols, np.uint32), np.array(current), used


def _push_lanes(
    symbols: np.ndarray, frequencies: np.ndarray, scale_bits: int, lanes: int
) -> tuple[np.ndarray, np.ndarray]:
    frequency = frequencies.astype(np.uint64)
    start = np.cumsum(frequency, dtype=np.uint64) - frequency
    limit = frequency << np.uint64(32 - scale_bits)
    states = np.full(lanes, _LOWEST_STATE, np.uint64)
    groups: list[np.ndarray] = []
    for first in range((len(symbols) - 1) // lanes * lanes, -1, -lanes):
        now = symbols[first : first + lanes]
        x = states[: len(now)]
        full = x >= limit[now]
        if full.any():
            groups.append(x[full].astype("<u2"))
            x = np.where(full, x >> np.uint64(16), x)
        quotient, remainder = np.divmod(x, frequency[now])
        states[: len(now)] = (
            (quotient << np.uint64(scale_bits)) + remainder + start[now]
        )
    words = np.concatenate([np.zeros(0, "<u2"), *reversed(groups)])
    return states, words.astype("<u2")


def _pop_lanes(
    states: np.ndarray,
    words: np.ndarray,
    frequencies: np.ndarray,
    scale_bits: int,
    size: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    slots = np.repeat(np.arange(len(frequencies), dtype=np.uint32), frequencies)
    start = np.cumsum(frequencies) - frequencies
    frequency = frequencies.astype(np.uint32)[slots]
    inside = (np.arange(len(slots)) - start[slots]).astype(np.uint32)
    shift, mask = np.uint32(scale_bits), np.uint32((1 << scale_bits) - 1)
    symbols = np.empty(size, np.uint32)
    lanes, used = len(states), 0
    for first in range(0, size, lanes):
        count = min(lanes, size - first)
        x = states[:count]
        slot = x & mask
        symbols[first : first + count] = slots[slot]
        x = frequency[slot] * (x >> shift) + inside[slot]
        # Lanes that ran low read the stream in lane order, as they wrote it.
        low = np.flatnonzero(x < _LOWEST_STATE)
        new = words[used : used + len(low)]
        if len(new) < len(low):
            raise CorruptFileError("an entropy-coded block ends too early.")
        x[low] = (x[low] << np.uint32(16)) | new
        states[:count] = x
        used += len(low)
    return symbols, states, used
