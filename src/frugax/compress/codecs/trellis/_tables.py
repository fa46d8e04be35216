"""Frequency tables of the trellis codec: one for each scale class and parity.

A whole number n of the trellis is `2 m + odd`, and a decoder knows `odd` beforehand.
It is coded as a symbol of at most 8 bits: `m` without its lowest bit q, less the lowest
that occurs, less some raw bits for fine grids; then q, which the trellis needs at once.
Two symbols more say "far out, with this q"; those numbers are listed elsewhere.

Weights of one row have one size, and rows differ: runs of numbers are sorted into
classes by their root mean square, a quarter of an octave each, and each class has its
own pair of tables.

Tables are stored as logarithms, in eighths of an octave: that costs 0.0005 bits for
each number coded and makes curves so smooth that their differences are 3 bits each.
All of it is whole-number arithmetic, alike on every machine.
"""

import dataclasses

import numpy as np

from frugax.errors import CorruptFileError

from .._uniform import MOST_LEVEL

SCALE_BITS = 12
LOWEST_STATE = 1 << 16  # states live in [2^16, 2^32) and move 16 bits at a time
MOST_CLASSES = 16
_MOST_HALVES = 126  # of 2 symbols each, and 2 symbols for what is far out: 254
_HALVES = 100  # what a fine grid is cut down to, by raw bits
# Powers of two, an eighth of an octave apart, from 2^12.
_EIGHTHS = np.array([4096, 4467, 4871, 5312, 5793, 6317, 6889, 7513], np.int64)
_MOST_LOG = 8 * 24
_MOST = MOST_LEVEL[4]
# A class of fewer numbers costs more for its tables than it saves.
_LEAST_NUMBERS = 6000


@dataclasses.dataclass(frozen=True)
class Tables:
    """What all the classes of a block share, and their tables.

    Attributes:
        raw_bits: how many bits of each number are not coded.
        lowest: of each class, the half `n >> (2 + raw_bits)` that symbols 0 and 1 mean.
        halves: of each class, how many halves have symbols.
        frequencies: `(classes, 2, 256)`: of even and odd numbers, by symbol; each row
            sums to `2^SCALE_BITS`. The last two symbols of a class are "far out".
        packed: the tables as they stand in a file.
    """

    raw_bits: int
    lowest: np.ndarray
    halves: np.ndarray
    frequencies: np.ndarray
    packed: bytes

    def symbols(self, numbers: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """The symbol of each number, uint8; the "far out" ones where it has none."""
        # Half the memory of 64 bits, which these numbers never need.
        half = numbers >> np.int32(2 + self.raw_bits)
        half -= self.lowest.astype(np.int32)[classes]
        most = self.halves.astype(np.int32)[classes]
        far = (half < 0) | (half >= most)
        half[far] = most[far]
        half <<= 1
        half |= (numbers >> 1) & 1
        return half.astype(np.uint8)

    def bits(self) -> np.ndarray:
        """What each symbol costs, in bits, `(classes, 2, 256)`; inf where none is."""
        with np.errstate(divide="ignore"):
            return SCALE_BITS - np.log2(self.frequencies)


def classify_rms(squares: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sort runs of numbers into classes of like size.

    Args:
        squares: sum of squares of each run.
        lengths: how many numbers each run has.

    Returns:
        The class of each run, uint8, at most `MOST_CLASSES` of them, none empty.
    """
    mean = squares / np.maximum(lengths, 1)
    with np.errstate(divide="ignore"):
        bins = np.floor(2 * np.log2(mean))
    top = bins.max()
    bins = np.maximum(bins, top - 4 * MOST_CLASSES) if np.isfinite(top) else 0 * mean
    found, which = np.unique(bins, return_inverse=True)
    numbers = np.bincount(which, lengths).astype(np.int64)
    renamed = np.zeros(len(found), np.uint8)
    name = held = 0
    for i in range(len(found) - 1, -1, -1):  # from the largest downwards
        enough = min(held, int(numbers[: i + 1].sum())) >= _LEAST_NUMBERS
        if enough and name < MOST_CLASSES - 1:
            name, held = name + 1, 0
        renamed[i] = name
        held += int(numbers[i])
    return renamed[which]


def build(numbers: np.ndarray, classes: np.ndarray) -> Tables:
    """The tables that fit these numbers; both arguments have one shape."""
    numbers, classes = numbers.reshape(-1), classes.reshape(-1)
    count = int(classes.max()) + 1
    parts = [numbers[classes == i] for i in range(count)] if count > 1 else [numbers]
    spans = [_span(part) for part in parts]
    raw_bits = 0
    while any(
        (h >> (2 + raw_bits)) - (a >> (2 + raw_bits)) >= _HALVES for a, h in spans
    ):
        raw_bits += 1
    shift = 2 + raw_bits
    lowest = np.array([a >> shift for a, _ in spans])
    halves = np.array([(h >> shift) - (a >> shift) + 1 for a, h in spans])
    logs = []
    for part, low, most in zip(parts, lowest, halves, strict=True):
        half = (part >> shift) - np.int32(low)
        half[(half < 0) | (half >= most)] = most
        index = (half * 2 + ((part >> 1) & 1)) * 2 + (part & 1)
        counts = np.bincount(index, minlength=4 * int(most) + 4)
        with np.errstate(divide="ignore"):
            log = np.rint(8 * np.log2(counts)) + 16  # 0: never seen, 16: once
        logs.append(np.clip(log, 0, _MOST_LOG).astype(np.int64))
    return Tables(
        raw_bits, lowest, halves, _frequencies(logs), _packed(lowest, halves, logs)
    )


def unpack(packed: bytes, *, classes: int, raw_bits: int) -> Tables:
    """Read what `build` packed.

    Raises:
        CorruptFileError: these are no such tables.
    """
    if len(packed) < 5 * classes or raw_bits > 24:
        raise CorruptFileError("a trellis-coded block has a damaged table.")
    lowest = np.frombuffer(packed, "<i4", classes).astype(np.int64)
    halves = np.frombuffer(packed, np.uint8, classes, 4 * classes).astype(np.int64)
    shift = 2 + raw_bits
    if max(-lowest.min() << shift, (lowest + halves - 1).max() << shift) > _MOST:
        raise CorruptFileError(f"a trellis-coded block has levels beyond {_MOST}.")
    sizes = 4 * halves + 4
    curves = np.frombuffer(packed, np.uint8, offset=5 * classes)
    if halves.max() > _MOST_HALVES or int(sizes.sum()) != len(curves):
        raise CorruptFileError("a trellis-coded block has a damaged table.")
    logs = [
        np.cumsum(part, dtype=np.uint8).astype(np.int64)
        for part in np.split(curves, np.cumsum(sizes)[:-1])
    ]
    if max(int(log.max()) for log in logs) > _MOST_LOG:
        raise CorruptFileError("a trellis-coded block has a damaged table.")
    return Tables(raw_bits, lowest, halves, _frequencies(logs), packed)


def _span(part: np.ndarray) -> tuple[int, int]:
    """The lowest and highest number worth a symbol; a few outliers are not."""
    most = 9 * float(np.sqrt(np.mean(np.square(part, dtype=np.float64)))) + 2
    most = min(most, _MOST - 16)
    near = part[np.abs(part) <= most]
    if not len(near):  # all are listed
        return 0, 0
    return int(near.min()), int(near.max())


def _packed(lowest: np.ndarray, halves: np.ndarray, logs: list[np.ndarray]) -> bytes:
    curves = [np.diff(log, prepend=0).astype(np.uint8).tobytes() for log in logs]
    head = lowest.astype("<i4").tobytes() + halves.astype(np.uint8).tobytes()
    return head + b"".join(curves)


def _frequencies(logs: list[np.ndarray]) -> np.ndarray:
    out = np.zeros((len(logs), 2, 256), np.int64)
    for of_class, log in zip(out, logs, strict=True):
        # A symbol that was never seen weighs a fourth of one seen once.
        weights = _EIGHTHS[log & 7] << (log >> 3)
        for odd in (0, 1):
            of_class[odd, : len(log) // 2] = _scaled(weights[odd::2])
    return out


def _scaled(weights: np.ndarray) -> np.ndarray:
    """Whole numbers, 1 or more, that sum to `2^SCALE_BITS`."""
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
