"""Frequency tables of the trellis codec, from which rANS codes its integers.

An integer n of the trellis is `2 m + odd`, and a decoder knows `odd` beforehand. The
integer is coded as a symbol of at most 8 bits: `m` without its lowest bit q, less the
lowest half that occurs, less some raw bits for fine grids; then q, which the trellis
needs at once. Two more symbols say "far out, with this q"; those integers are listed
elsewhere.

Weights of one row have one scale, and rows differ: runs of numbers are sorted into
classes by their root mean square, a quarter of an octave each, and each class has its
own pair of tables.

Tables are stored as logarithms, in eighths of an octave: that costs 0.0005 bits for
each number coded and makes curves so smooth that their differences are 3 bits each.
All arithmetic is on integers, alike on every machine.
"""

import dataclasses
import math

import numpy as np

from frugax.errors import CorruptFileError

from ..uniform import MAX_LEVEL

SCALE_BITS = 12
# rANS states stay in [2^16, 2^32), so renormalising moves exactly one 16-bit word.
LOWEST_STATE = 1 << 16
MAX_CLASSES = 16
_MAX_HALVES = 126  # of 2 symbols each, and 2 symbols for "far out": 254
_CODED_HALVES = 100  # the count that a fine grid is cut down to, by raw bits
# Powers of two, an eighth of an octave apart, from 2^12.
_EIGHTHS = np.array([4096, 4467, 4871, 5312, 5793, 6317, 6889, 7513], np.int64)
_MAX_LOG = 8 * 24
_MAX_CODED = MAX_LEVEL[4]
# A table of more counts than this takes longer than sorting.
_MAX_COUNTED = 1 << 22
_PART = 1 << 16  # numbers that are counted at once
# A class of fewer numbers costs more for its tables than it saves.
_MIN_CLASS_SIZE = 6000


@dataclasses.dataclass(frozen=True)
class Tables:
    """The tables of all the classes of a block.

    Attributes:
        raw_bits: how many bits of each integer are not coded.
        lowest: of each class, the half `n >> (2 + raw_bits)` of symbols 0 and 1.
        halves: of each class, how many halves have symbols.
        frequencies: `(classes, 2, 256)`: of even and odd integers, by symbol; each row
            sums to `2^SCALE_BITS`. The last two symbols of a class are "far out".
        packed: the tables as they stand in a file.
    """

    raw_bits: int
    lowest: np.ndarray
    halves: np.ndarray
    frequencies: np.ndarray
    packed: bytes

    def symbols(self, numbers: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Return the symbol of each integer, uint8; "far out" where it has none."""
        # int32 throughout: half the memory of int64, which these never need.
        half = numbers >> np.int32(2 + self.raw_bits)
        half -= self.lowest.astype(np.int32)[classes]
        count = self.halves.astype(np.int32)[classes]
        far = (half < 0) | (half >= count)
        half[far] = count[far]
        half <<= 1
        half |= (numbers >> 1) & 1
        return half.astype(np.uint8)

    def bits(self) -> np.ndarray:
        """Return the bits of each symbol, `(classes, 2, 256)`; inf if it has none."""
        with np.errstate(divide="ignore"):
            return SCALE_BITS - np.log2(self.frequencies)


def classify_rms(squares: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sort runs of numbers into classes of like scale."""
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


def fit_tables(numbers: np.ndarray, classes: np.ndarray) -> Tables:
    """Build the tables that fit these integers; both arguments have one shape."""
    histograms = _count_by_class(numbers.reshape(-1), classes.reshape(-1))
    spans = [_coded_span(*histogram) for histogram in histograms]
    # Leave low bits raw until the widest class has at most `_CODED_HALVES` halves: on
    # a fine grid these bits are close to uniform, and coding them would gain nothing.
    raw_bits = 0
    while any(
        (high >> (2 + raw_bits)) - (low >> (2 + raw_bits)) >= _CODED_HALVES
        for low, high in spans
    ):
        raw_bits += 1
    shift = 2 + raw_bits
    lowest = np.array([low >> shift for low, _ in spans])
    halves = np.array([(high >> shift) - (low >> shift) + 1 for low, high in spans])
    logs = []
    for (part, seen), low, most in zip(histograms, lowest, halves, strict=True):
        half = (part >> shift) - low
        half[(half < 0) | (half >= most)] = most
        index = (half * 2 + ((part >> 1) & 1)) * 2 + (part & 1)
        # The sums are of integers, so float64 holds them exactly.
        counts = np.bincount(index, seen, minlength=4 * int(most) + 4)
        with np.errstate(divide="ignore"):
            log = np.rint(8 * np.log2(counts)) + 16  # 0: never seen, 16: once
        logs.append(np.clip(log, 0, _MAX_LOG).astype(np.int64))
    packed = _pack(lowest, halves, logs)
    return Tables(raw_bits, lowest, halves, _to_frequencies(logs), packed)


def parse_tables(packed: bytes, *, classes: int, raw_bits: int) -> Tables:
    """Read tables that `fit_tables` packed."""
    if len(packed) < 5 * classes or raw_bits > 24:
        raise CorruptFileError("a trellis-coded block has a damaged table.")
    lowest = np.frombuffer(packed, "<i4", classes).astype(np.int64)
    halves = np.frombuffer(packed, np.uint8, classes, 4 * classes).astype(np.int64)
    shift = 2 + raw_bits
    if max(-lowest.min() << shift, (lowest + halves - 1).max() << shift) > _MAX_CODED:
        raise CorruptFileError(f"a trellis-coded block has levels beyond {_MAX_CODED}.")
    sizes = 4 * halves + 4
    curves = np.frombuffer(packed, np.uint8, offset=5 * classes)
    if halves.max() > _MAX_HALVES or int(sizes.sum()) != len(curves):
        raise CorruptFileError("a trellis-coded block has a damaged table.")
    logs = [
        np.cumsum(part, dtype=np.uint8).astype(np.int64)
        for part in np.split(curves, np.cumsum(sizes)[:-1])
    ]
    if max(int(log.max()) for log in logs) > _MAX_LOG:
        raise CorruptFileError("a trellis-coded block has a damaged table.")
    return Tables(raw_bits, lowest, halves, _to_frequencies(logs), packed)


def _count_by_class(
    numbers: np.ndarray, classes: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the integers that occur in each class, and how often, as int64."""
    count, low = int(classes.max()) + 1, int(numbers.min())
    span = int(numbers.max()) - low + 1
    if count * span > _MAX_COUNTED:
        parts = (numbers[classes == i].astype(np.int64) for i in range(count))
        return [np.unique(part, return_counts=True) for part in parts]
    table = np.zeros(count * span, np.int64)
    for first in range(0, len(numbers), _PART):  # copies that stay in the cache
        index = numbers[first : first + _PART] - np.int32(low)
        if count > 1:
            index += classes[first : first + _PART] * np.int32(span)
        table += np.bincount(index, minlength=len(table))
    table = table.reshape(count, span)
    there = [row.nonzero()[0] for row in table]
    return [(at + low, row[at]) for at, row in zip(there, table, strict=True)]


def _coded_span(numbers: np.ndarray, counts: np.ndarray) -> tuple[int, int]:
    """Return the lowest and highest integer worth a symbol; outliers are listed."""
    # Not by BLAS, which sums by as many threads as there are.
    square = float((np.square(numbers, dtype=np.float64) * counts).sum())
    square /= float(counts.sum())
    limit = min(9 * math.sqrt(square) + 2, _MAX_CODED - 16)
    near = numbers[np.abs(numbers) <= limit]
    if not len(near):  # all are listed
        return 0, 0
    return int(near.min()), int(near.max())


def _pack(lowest: np.ndarray, halves: np.ndarray, logs: list[np.ndarray]) -> bytes:
    curves = [np.diff(log, prepend=0).astype(np.uint8).tobytes() for log in logs]
    head = lowest.astype("<i4").tobytes() + halves.astype(np.uint8).tobytes()
    return head + b"".join(curves)


def _to_frequencies(logs: list[np.ndarray]) -> np.ndarray:
    out = np.zeros((len(logs), 2, 256), np.int64)
    for of_class, log in zip(out, logs, strict=True):
        # A symbol never seen weighs a fourth of one seen once.
        weights = _EIGHTHS[log & 7] << (log >> 3)
        for odd in (0, 1):
            of_class[odd, : len(log) // 2] = _normalise(weights[odd::2])
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
