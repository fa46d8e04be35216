"""Frequency tables, from which rANS codes the integers of a grid.

An integer n of the trellis is `2 m + odd`, and a decoder knows `odd` beforehand. The
integer is coded as a symbol of at most 8 bits: `m` without its lowest bit q, less the
lowest half that occurs, less some raw bits for fine grids; then q, which the trellis
needs at once. Two more symbols say "far out, with this q"; those integers are listed
elsewhere. Of a uniform grid m is the integer itself without its raw bits, which are the
lowest, and `odd` is always 0; the second of the two symbols is that of 0, which has no
raw bits: many weights of pruned tensors are 0.

Weights of one row have one scale, and rows differ: runs of numbers are sorted into
classes by their root mean square, a quarter of an octave each, and each class has its
own pair of tables.

Tables are stored as logarithms, in eighths of an octave: that costs 0.0005 bits for
each number coded and makes curves so smooth that their differences are 3 bits each.
All arithmetic is on integers, alike on every machine.
"""

import dataclasses
import math
import struct
from collections.abc import Sequence

import numpy as np

from frugax.errors import CorruptFileError

from ..steps import MAX_LEVEL

SCALE_BITS = 12
# rANS states stay in [2^16, 2^32), so renormalising moves exactly one 16-bit word.
LOWEST_STATE = 1 << 16
MAX_CLASSES = 16
_MAX_HALVES = 126  # of 2 symbols each, and 2 symbols for "far out": 254
_CODED_HALVES = 100  # the count that a fine grid is cut down to, by raw bits
_MAX_HALF = 1 << 25  # of a symbol: a look-up of the decoder has 29 bits for an integer
_MAX_RAW_BITS = 52
# Powers of two, an eighth of an octave apart, from 2^12.
_EIGHTHS = np.array([4096, 4467, 4871, 5312, 5793, 6317, 6889, 7513], np.int64)
_MAX_LOG = 8 * 24
# Of a trellis and of a uniform grid.
_MAX_CODED = {True: MAX_LEVEL[4], False: MAX_LEVEL[8]}
# Bits of an integer of a uniform grid that are looked at, to choose which stay raw.
_SPAN_BITS = 14
# A table of more counts than this takes longer than sorting.
_MAX_COUNTED = 1 << 22
_PART = 1 << 16  # numbers that are counted at once
# A class of fewer numbers costs more for its tables than it saves.
_MIN_CLASS_SIZE = 6000


@dataclasses.dataclass(frozen=True)
class Tables:
    """The tables of all the classes of a block.

    Attributes:
        trellis: whether a decoder knows which integers are odd.
        raw_bits: how many bits of each integer are not coded.
        lowest: of each class, the half of symbols 0 and 1.
        halves: of each class, how many halves have symbols.
        frequencies: `(classes, 2, 256)`: of even and odd integers, by symbol; each row
            sums to `2^SCALE_BITS`. The last two symbols of a class are "far out". Of a
            uniform grid `(classes, 1, 256)`.
        packed: the tables as they stand in a file.
    """

    trellis: bool
    raw_bits: int
    lowest: np.ndarray
    halves: np.ndarray
    frequencies: np.ndarray
    packed: bytes

    def entries(
        self, numbers: np.ndarray, classes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the place of each integer in `frequencies`, flat, uint16.

        And the integers that are "far out", in their order.
        """
        out, far = np.empty(len(numbers), np.uint16), [numbers[:0]]
        for first in range(0, len(numbers), _PART):  # copies that stay in the cache
            part = slice(first, first + _PART)
            out[part], apart = self._entries(numbers[part], classes[part])
            far.append(apart)
        return out, np.concatenate(far)

    def _entries(
        self, numbers: np.ndarray, classes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # In the type of the numbers: int32 is half the memory of int64.
        kind = numbers.dtype.type
        low, count = self.lowest.astype(kind), self.halves.astype(kind)
        if len(count) > 1:
            low, count = low[classes], count[classes]
        below = kind(1 if self.trellis else 0)
        symbol = numbers >> kind(below + 1 + self.raw_bits)
        symbol -= low
        # As unsigned numbers, those below 0 are the largest.
        unsigned = np.dtype(f"u{symbol.itemsize}")
        outside = symbol.view(unsigned) >= count.view(unsigned)
        if outside.any():
            symbol = np.where(outside, count, symbol)
        symbol *= kind(2)
        if self.trellis:
            symbol += numbers >> kind(1) & kind(1)
            symbol += (numbers & kind(1)) * kind(256)
        else:
            symbol += numbers >> kind(self.raw_bits) & kind(1)
            zero = numbers == 0
            symbol = np.where(outside, 2 * count, symbol)
            symbol = np.where(zero, 2 * count + 1, symbol)
            outside &= ~zero
        if len(self.halves) > 1:
            symbol += classes * kind(256 * self.frequencies.shape[1])
        return symbol.astype(np.uint16), numbers[outside]

    def bits(self) -> np.ndarray:
        """Return the bits of each symbol, as `frequencies`; inf if it has none."""
        with np.errstate(divide="ignore"):
            return SCALE_BITS - np.log2(self.frequencies)


def classify_rms(squares: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sort runs of numbers into classes of like scale."""
    if lengths.sum() < 2 * _MIN_CLASS_SIZE:
        return np.zeros(len(squares), np.uint8)
    mean = squares / np.maximum(lengths, 1)
    with np.errstate(divide="ignore"):
        # Twice the log2 of a mean square: bins a quarter of an octave of rms wide.
        bins = np.floor(2 * np.log2(mean))
    top = bins.max()
    bins = np.maximum(bins, top - 4 * MAX_CLASSES) if np.isfinite(top) else 0 * mean
    occurring, which = np.unique(bins, return_inverse=True)
    numbers = np.bincount(which, lengths).astype(np.int64)
    # Merge bins from the loudest down, until each class has enough numbers.
    class_of_bin = np.zeros(len(occurring), np.uint8)
    current = held = 0
    for i in range(len(occurring) - 1, -1, -1):
        enough = min(held, int(numbers[: i + 1].sum())) >= _MIN_CLASS_SIZE
        if enough and current < MAX_CLASSES - 1:
            current, held = current + 1, 0
        class_of_bin[i] = current
        held += int(numbers[i])
    return class_of_bin[which]


def fit_tables(numbers: np.ndarray, classes: np.ndarray, *, trellis: bool) -> Tables:
    """Build the tables that fit some integers, flat, of these classes."""
    raw_bits, below = 0, 2  # bits below a half
    count, zeros = int(classes.max()) + 1, np.zeros(0)
    if not trellis:
        total, present = len(numbers), numbers != 0
        zeros = np.bincount(classes[~present], minlength=count)
        classes, numbers = classes[present], numbers[present]
        (raw_bits, _), below = choose_raw_bits(numbers, total), 1
        numbers >>= numbers.dtype.type(raw_bits)
    histograms = _count_by_class(numbers, classes, count)
    spans = [_coded_span(*histogram, trellis=trellis) for histogram in histograms]
    # Leave more bits raw until the widest class has at most `_CODED_HALVES` halves: on
    # a fine grid they are close to uniform, and coding them would gain nothing.
    more = 0
    while _count_halves(spans, below) > _CODED_HALVES:
        more, below = more + 1, below + 1
    lowest = np.array([low >> below for low, _ in spans])
    halves = np.array([(high >> below) - (low >> below) + 1 for low, high in spans])
    logs = []
    for i, (part, seen) in enumerate(histograms):
        most = int(halves[i])
        half = (part >> below) - lowest[i]
        far = (half < 0) | (half >= most)
        half[far] = most
        index = half * 2 + ((part >> (1 if trellis else more)) & 1)
        if trellis:
            index = index * 2 + (part & 1)
        else:
            index[far] = 2 * most
        # The sums are of integers, so float64 holds them exactly.
        length = _count_logs(most, trellis=trellis)
        counts = np.bincount(index, seen, minlength=length)
        if not trellis:
            counts[-1] += zeros[i]
        with np.errstate(divide="ignore"):
            log = np.rint(8 * np.log2(counts)) + 16  # 0: never seen, 16: once
        logs.append(np.clip(log, 0, _MAX_LOG).astype(np.int64))
    packed = _pack(lowest, halves, logs)
    frequencies = _to_frequencies(logs, trellis=trellis)
    return Tables(trellis, raw_bits + more, lowest, halves, frequencies, packed)


def parse_tables(
    packed: bytes, *, classes: int, raw_bits: int, trellis: bool
) -> Tables:
    """Read tables that `fit_tables` packed."""
    if len(packed) < 5 * classes or raw_bits > _MAX_RAW_BITS:
        raise CorruptFileError("a coded block has a damaged table.")
    # In Python's integers: there are few, and they do not overflow.
    lowest = struct.unpack_from(f"<{classes}i", packed)
    halves = packed[4 * classes : 5 * classes]
    below, most = raw_bits + (2 if trellis else 1), _MAX_CODED[trellis]
    ends = zip(lowest, halves, strict=True)
    largest = max(max(-low, low + count - 1) for low, count in ends)
    if largest << below > most or largest > _MAX_HALF:
        raise CorruptFileError(f"a coded block has levels beyond {most}.")
    lengths = [_count_logs(count, trellis=trellis) for count in halves]
    if max(halves) > _MAX_HALVES or 5 * classes + sum(lengths) != len(packed):
        raise CorruptFileError("a coded block has a damaged table.")
    logs: list[np.ndarray] = []
    at = 5 * classes
    for length in lengths:
        differences = np.frombuffer(packed, np.uint8, length, at)
        log = differences.cumsum(dtype=np.uint8)
        if log.max() > _MAX_LOG:
            raise CorruptFileError("a coded block has a damaged table.")
        logs.append(log.astype(np.int64))
        at += length
    frequencies = _to_frequencies(logs, trellis=trellis)
    ends = np.array(lowest), np.array([*halves])
    return Tables(trellis, raw_bits, *ends, frequencies, packed)


def _count_logs(halves: int, *, trellis: bool) -> int:
    """Return how many symbols a class has, of even and odd integers together."""
    return (2 * halves + 2) * (2 if trellis else 1)


def _count_halves(spans: Sequence[tuple[int, int]], below: int) -> int:
    return max((high >> below) - (low >> below) + 1 for low, high in spans)


def choose_raw_bits(numbers: np.ndarray, total: int) -> tuple[int, float]:
    """Choose the lowest bits that are not coded: as many as make a block shortest.

    Of a uniform grid, whose integers that are not 0 are given, and how many there are
    in all. The second number returned is about how many bits table, symbols and raw
    bits then take.
    """
    if not numbers.size:
        return 0, 0.0
    # Some are listed apart: they must not set what the others cost.
    low, high = _coded_span(numbers, None, trellis=False)
    fewest = max(
        *(0, (high - low).bit_length() - _SPAN_BITS),
        max(-low, high).bit_length() - _MAX_HALF.bit_length(),
    )
    index = np.clip(numbers, low, high)
    index -= numbers.dtype.type(low)
    counts = np.bincount(index >> fewest)
    best, raw_bits = math.inf, fewest
    for bits in range(fewest, fewest + _SPAN_BITS + 1):
        widest = (high >> bits) - (low >> bits) + 1
        if widest <= 2 * _CODED_HALVES:
            share = np.append(counts, total - len(numbers)) / total
            share = share[share > 0]
            entropy = -float((share * np.log2(share)).sum())
            cost = total * entropy + len(numbers) * bits + 8 * widest
            if cost >= best:
                break
            best, raw_bits = cost, bits
        # One more raw bit merges neighbouring symbols in pairs.
        counts = np.append(counts, np.zeros(len(counts) % 2, counts.dtype))
        counts = counts.reshape(-1, 2).sum(axis=1)
    return raw_bits, best


def _count_by_class(
    numbers: np.ndarray, classes: np.ndarray, count: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the integers that occur in each class, and how often, as int64."""
    if not numbers.size:
        none = np.zeros(0, np.int64)
        return [(none, none)] * count
    low = int(numbers.min())
    span = int(numbers.max()) - low + 1
    if count * span > _MAX_COUNTED:
        parts = (numbers[classes == i].astype(np.int64) for i in range(count))
        return [np.unique(part, return_counts=True) for part in parts]
    table = np.zeros(count * span, np.int64)
    for first in range(0, len(numbers), _PART):  # copies that stay in the cache
        index = numbers[first : first + _PART] - numbers.dtype.type(low)
        if count > 1:
            index += classes[first : first + _PART] * numbers.dtype.type(span)
        table += np.bincount(index, minlength=len(table))
    table = table.reshape(count, span)
    there = [row.nonzero()[0] for row in table]
    return [(at + low, row[at]) for at, row in zip(there, table, strict=True)]


def _coded_span(
    numbers: np.ndarray, counts: np.ndarray | None, *, trellis: bool
) -> tuple[int, int]:
    """Return the lowest and highest integer worth a symbol; outliers are listed."""
    # Those of a uniform grid are left out of the size that tells them, again and again.
    near = numbers
    if not near.size:
        return 0, 0
    for _ in range(1 if trellis else 4):
        # Not by BLAS, which sums by as many threads as there are.
        squares = np.square(near, dtype=np.float64)
        if counts is None:
            mean = float(squares.mean())
        else:
            mean = float((squares * counts).sum()) / float(counts.sum())
        limit = min(9 * math.sqrt(mean) + 2, _MAX_CODED[trellis] - 16)
        if max(int(near.max()), -int(near.min())) <= limit:
            break
        inside = np.abs(near) <= limit
        near, counts = near[inside], None if counts is None else counts[inside]
        if not near.size:  # all are listed
            return 0, 0
    return int(near.min()), int(near.max())


def _pack(lowest: np.ndarray, halves: np.ndarray, logs: list[np.ndarray]) -> bytes:
    curves = [np.diff(log, prepend=0).astype(np.uint8).tobytes() for log in logs]
    head = lowest.astype("<i4").tobytes() + halves.astype(np.uint8).tobytes()
    return head + b"".join(curves)


def _to_frequencies(logs: list[np.ndarray], *, trellis: bool) -> np.ndarray:
    parities = 2 if trellis else 1
    out = np.zeros((len(logs), parities, 256), np.int64)
    for of_class, log in zip(out, logs, strict=True):
        # A symbol never seen weighs a fourth of one seen once.
        weights = _EIGHTHS[log & 7] << (log >> 3)
        for odd in range(parities):
            of_parity = weights[odd::parities]
            of_class[odd, : len(of_parity)] = _normalise(of_parity)
    return out


def _normalise(weights: np.ndarray) -> np.ndarray:
    """Scale weights to integers, 1 or more, that sum to `2^SCALE_BITS`."""
    total = 1 << SCALE_BITS
    scaled = np.maximum(
        1, (weights * total + int(weights.sum()) // 2) // int(weights.sum())
    )
    surplus = int(scaled.sum()) - total
    while surplus:  # taken from the largest, or given to it
        largest = int(np.argmax(scaled))
        change = min(surplus, max(1, int(scaled[largest]) // 8))
        scaled[largest] -= change
        surplus -= change
    return scaled
