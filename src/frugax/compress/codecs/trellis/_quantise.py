"""Trellis-coded quantisation: which whole numbers a row of weights should become.

All numbers of a lane share one grid of whole numbers, but not every one is allowed
everywhere: a number must be even or odd as the one before says. What is saved by
naming only half of them is more than what is lost, since an encoder that looks ahead
finds a path of near numbers. Of the 1.53 dB that a uniform grid loses, a trellis of 8
states wins back about one.

The trellis is Ungerboeck's with 8 states, its state the last three branch bits b:

    n[t] mod 4 = 2 q[t] + b[t-1],    q[t] = b[t] ^ b[t-2] ^ b[t-3]

Finding the best path is a min-plus product of a vector with one 8 x 8 matrix for each
number, of which two entries in a column are finite: the recursion in `viterbi`.

References:
    Ungerboeck 1982, IEEE Trans. Information Theory 28(1), 55-67 (the trellis);
    Marcellin & Fischer 1990, IEEE Trans. Communications 38(1), 82-93 (quantising);
    Marcellin 1994, IEEE Trans. Communications 42(1), 14-16 (with an entropy coder).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from .._uniform import MOST_LEVEL, Step, compute_type, to_values
from ._tables import Tables, build, classify_rms

# Steps of the recursion whose costs are computed in one go.
_TILE = 32


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Weights whose best path is wanted.

    Attributes:
        scaled: weights over their step, float32, `(steps, lanes)`: each column is a
            lane of its own, which begins in state 0.
        rates: what each whole number costs, in squared steps, `(classes, numbers)`,
            float32; an odd count, the number 0 in the middle; the ends stand for all
            beyond them. None if all cost the same.
        classes: the row of `rates` for each weight, `(steps, lanes)`.
    """

    scaled: np.ndarray
    rates: np.ndarray | None
    classes: np.ndarray


def viterbi(wanted: Sequence[Wanted]) -> list[np.ndarray]:
    """The paths of whole numbers with the least squared error, or error plus rate.

    No path depends on what else is wanted. Lanes stand side by side, as a step of few
    takes as long as one of many.

    Args:
        wanted: all with rates, or all without.

    Returns:
        The numbers of each, int32, `(steps, lanes)`. Of two equal paths the one whose
        oldest differing bit is 0.
    """
    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=lambda i: -len(wanted[i].scaled))
    ranked = [wanted[i] for i in order]
    ends = np.cumsum([part.scaled.shape[1] for part in ranked])
    scaled, classes, rates = _side_by_side(ranked)
    state = np.empty(ends[-1], np.uint8)
    # Indices of a cost: its state's bits, the oldest first, then the lane.
    cost = np.full((2, 2, 2, ends[-1]), np.inf, np.float32)
    cost[0, 0, 0] = 0
    high: list[np.ndarray] = []  # of each step and lane, a bit for each state
    lengths = [len(part.scaled) for part in ranked]
    for length in sorted(set(lengths)):  # lanes end, the shortest first
        lanes = int(ends[sum(n >= length for n in lengths) - 1])
        cost = np.ascontiguousarray(cost[..., :lanes])
        by_low, by_high = (np.empty(cost.shape, np.float32) for _ in range(2))
        less = np.empty((_TILE, *cost.shape), bool)
        for first in range(len(high), length, _TILE):
            rows = slice(first, min(length, first + _TILE))
            tile = _branch_costs(scaled[rows, :lanes], rates, classes[rows, :lanes])
            for branch, by_which in zip(tile, less, strict=False):
                np.add(cost[0][:, :, None], branch, out=by_low)
                np.add(cost[1][:, :, None], branch[::-1], out=by_high)
                # Strictly less: equal paths are decided alike everywhere.
                np.less(by_high, by_low, out=by_which)
                np.minimum(by_low, by_high, out=cost)
            high.extend(_packed(less[: len(tile)].reshape(len(tile), 8, lanes)))
        state[:lanes] = cost.reshape(8, lanes).argmin(axis=0)
    numbers = _nearest(scaled, residues(_trace_back(state, high)))
    found = [numbers] * len(wanted)
    for i, part, end in zip(order, ranked, ends, strict=True):
        steps, lanes = part.scaled.shape
        found[i] = numbers[:steps, end - lanes : end]
    return found


def _side_by_side(
    ranked: Sequence[Wanted],
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Weights, classes and rates of all, the longest first."""
    if len(ranked) == 1:  # nothing to copy
        return ranked[0].scaled, ranked[0].classes, ranked[0].rates
    shape = len(ranked[0].scaled), sum(part.scaled.shape[1] for part in ranked)
    scaled, classes = np.zeros(shape, np.float32), np.zeros(shape, np.int16)
    rates = [part.rates for part in ranked if part.rates is not None]
    width = max((of_part.shape[1] for of_part in rates), default=0)
    at = base = 0
    for part in ranked:
        steps, lanes = part.scaled.shape
        scaled[:steps, at : at + lanes] = part.scaled
        if part.rates is not None:
            classes[:steps, at : at + lanes] = part.classes.astype(np.int16) + base
            base += len(part.rates)
        at += lanes
    padded = [
        np.pad(r, ((0, 0), ((width - r.shape[1]) // 2,) * 2), mode="edge")
        for r in rates
    ]
    return scaled, classes, np.concatenate(padded) if padded else None


def residues(bits: np.ndarray) -> np.ndarray:
    """What the whole numbers are modulo 4, from the branch bits along axis 0."""
    residue = bits << 1
    residue[2:] ^= bits[:-2] << 1
    residue[3:] ^= bits[:-3] << 1
    residue[1:] |= bits[:-1]
    return residue


def _branch_costs(
    scaled: np.ndarray, rates: np.ndarray | None, classes: np.ndarray
) -> np.ndarray:
    """Cost of each branch, `(steps, b[t-2], b[t-1], b[t], lanes)`, if b[t-3] is 0.

    Where b[t-3] is 1 the costs are those with b[t-2] turned over.
    """
    steps, lanes = scaled.shape
    out = np.empty((steps, 2, 2, 2, lanes), np.float32)
    middle, flat, zero = 0, np.zeros(0, np.float32), scaled
    if rates is not None:
        middle, flat = rates.shape[1] // 2, rates.reshape(-1)
        # Where the rate of 0 is: exact in float32, below 2^24.
        zero = classes * np.float32(rates.shape[1]) + np.float32(middle)
    for q in (0, 1):
        for odd in (0, 1):
            residue = np.float32(2 * q + odd)
            # How far the nearest number of this residue is, in fours.
            gap = (scaled - residue) * np.float32(0.25)
            nearest = np.rint(gap)
            gap -= nearest
            gap *= gap
            gap *= np.float32(16)
            if rates is not None:
                nearest *= np.float32(4)
                nearest += residue
                np.clip(nearest, -middle, middle, out=nearest)
                nearest += zero
                gap += flat.take(nearest.astype(np.intp))
            out[:, 0, odd, q] = gap
            out[:, 1, odd, 1 - q] = gap
    return out


def _packed(flags: np.ndarray) -> np.ndarray:
    """Eight flags to a byte, `(steps, lanes)`; `np.packbits` is slow on this axis."""
    packed = flags[:, 7].astype(np.uint8)
    for i in range(6, -1, -1):
        packed <<= 1
        packed |= flags[:, i]
    return packed


def _trace_back(state: np.ndarray, high: list[np.ndarray]) -> np.ndarray:
    """The branch bits of the paths that end in these states, `(steps, lanes)`."""
    bits = np.zeros((len(high), len(state)), np.uint8)
    for t in range(len(high) - 1, -1, -1):
        lanes = len(high[t])
        now = state[:lanes]
        np.bitwise_and(now, 1, out=bits[t, :lanes])
        from_high = high[t] >> now
        from_high &= 1
        from_high <<= 2
        now >>= 1
        now |= from_high
    return bits


def _nearest(scaled: np.ndarray, residue: np.ndarray) -> np.ndarray:
    """The nearest whole number of each residue modulo 4."""
    fours = np.rint((scaled - residue.astype(np.float32)) * np.float32(0.25))
    return fours.astype(np.int32) * 4 + residue


# Each lane costs 4 bytes of state, 3/4 of a byte of which carries something: 0.3% of
# 4-bit numbers. Longer lanes are fewer, and a step of few lanes is no faster in NumPy.
LANE = 2048
_LEAST_RUN = 64
# What a bit is worth, in squared steps: at high rate D = 0.26 steps^2 and dD/dR is
# -2 ln 2 D, 0.36. Measured on normal numbers: 0.2 to 0.5 are alike within 0.03 dB.
_BIT = np.float32(0.36)
# Beyond this many steps of deviation, rates are as good as equal (0.003 dB).
_RATES_UP_TO = 12.0
# Few are larger, and the largest has the rate of these: tables stay small.
_MOST_RATES = 1 << 11
# The number that is taken may be some steps off, and must be exact in float32.
_MOST_SCALED = MOST_LEVEL[4] - 16
# Larger ones are listed: a level of at most this, which float32 rounds.
FARTHEST = 1 << 30
_PART = 1 << 20  # numbers in a float64 copy
# Rates are learnt on short pieces of the lanes, many side by side: that is quick.
_PIECE, _PIECES = 128, 256


@dataclasses.dataclass(frozen=True)
class Lanes:
    """How the numbers of a block are cut up.

    Attributes:
        size: how many numbers.
        length: of a lane, the last one perhaps shorter.
        run: how many numbers in a row share a class; divides `length`.
    """

    size: int
    length: int
    run: int

    @classmethod
    def of_rows(cls, size: int, row: int) -> "Lanes":
        """Cut rows of `row` numbers: runs are rows, or even parts of a long one."""
        if row > LANE:
            pieces = -(-row // LANE)
            length = -(-row // pieces)
            return cls(size, length, length)
        run = row * -(-_LEAST_RUN // row)
        runs = min(max(1, round(LANE / run)), -(-size // run))
        return cls(size, run * runs, run)

    @property
    def count(self) -> int:
        """How many lanes."""
        return -(-self.size // self.length)

    @property
    def runs(self) -> int:
        """How many runs."""
        return -(-self.size // self.run)

    def split(self, flat: np.ndarray) -> np.ndarray:
        """The numbers as `(length, count)`, zeros at the end of the last lane."""
        padded = np.zeros(self.count * self.length, flat.dtype)
        padded[: self.size] = flat
        return np.ascontiguousarray(padded.reshape(self.count, self.length).T)

    def join(self, lanes: np.ndarray) -> np.ndarray:
        """What `split` cut up."""
        return np.ascontiguousarray(lanes.T).reshape(-1)[: self.size]

    def spread(self, of_runs: np.ndarray) -> np.ndarray:
        """One entry for each run, as `(length / run, count)`."""
        rows = self.length // self.run
        padded = np.zeros(self.count * rows, of_runs.dtype)
        padded[: len(of_runs)] = of_runs
        return np.ascontiguousarray(padded.reshape(self.count, rows).T)


@dataclasses.dataclass(frozen=True)
class Coded:
    """The numbers of a block, ready to be coded.

    Attributes:
        lanes: how they are cut up.
        levels: the numbers, `(lanes.length, lanes.count)`.
        classes: the class of each run.
        tables: what codes them.
    """

    lanes: Lanes
    levels: np.ndarray
    classes: np.ndarray
    tables: Tables

    @property
    def flat(self) -> np.ndarray:
        """The numbers in their order."""
        return self.lanes.join(self.levels)


def sum_run_squares(values: np.ndarray, lanes: Lanes) -> np.ndarray:
    """Sum of squares of each run of flat values."""
    part = max(1, _PART // lanes.run) * lanes.run
    found = [
        np.add.reduceat(
            np.square(values[at : at + part].astype(np.float64)),
            np.arange(0, min(part, len(values) - at), lanes.run),
        )
        for at in range(0, len(values), part)
    ]
    return np.concatenate(found)


def classify_runs(values: np.ndarray, lanes: Lanes) -> np.ndarray:
    """The class of each run of flat values, uint8; whatever the step will be."""
    lengths = np.full(lanes.runs, lanes.run)
    lengths[-1] = lanes.size - lanes.run * (lanes.runs - 1)
    return classify_rms(sum_run_squares(values, lanes), lengths)


@dataclasses.dataclass(frozen=True)
class Part:
    """Weights to be quantised.

    Attributes:
        values: flat, finite, at least one.
        step: what the numbers are multiples of.
        lanes: how they are cut up.
        classes: the class of each run.
    """

    values: np.ndarray
    step: Step
    lanes: Lanes
    classes: np.ndarray


def quantise(parts: Sequence[Part]) -> list[Coded | None]:
    """Find the best numbers for each; None where some are too large.

    They do not depend on what else is asked for. Memory is needed for all at once.
    """
    rough: dict[int, Wanted] = {}
    fine: dict[int, Wanted] = {}
    for i, part in enumerate(parts):
        scaled = _scaled(part)
        if scaled is None:
            continue
        rms = float(np.sqrt(np.mean(np.square(scaled), dtype=np.float64)))
        spread = np.repeat(part.lanes.spread(part.classes), part.lanes.run, axis=0)
        wanted = Wanted(part.lanes.split(scaled), None, spread)
        (rough if rms < _RATES_UP_TO else fine)[i] = wanted
    rough = dict(zip(rough, _with_rates([*rough.values()]), strict=True))
    found: list[Coded | None] = [None] * len(parts)
    for group in (rough, fine):
        paths = viterbi([*group.values()])
        for i, levels in zip(group, paths, strict=True):
            found[i] = _coded(parts[i], levels)
    return found


def _scaled(part: Part) -> np.ndarray | None:
    working = compute_type(part.values.dtype)
    scaled = (part.values.astype(working) / part.step.size).astype(np.float32)
    largest = np.abs(scaled).max()
    if largest > _MOST_SCALED:
        np.clip(scaled, -_MOST_SCALED, _MOST_SCALED, out=scaled)
    return None if largest > FARTHEST - 4 else scaled


def _far_out(part: Part, flat: np.ndarray) -> np.ndarray:
    """The levels, those of clipped numbers as near as the path's residues let them."""
    scaled = part.values.astype(np.float64) / part.step.size
    there = np.flatnonzero(np.abs(scaled) > _MOST_SCALED - 1)
    residue, out = flat[there] & 3, flat.copy()
    out[there] = residue + 4 * np.rint((scaled[there] - residue) / 4).astype(np.int32)
    return out


def _coded(part: Part, levels: np.ndarray) -> Coded | None:
    flat = part.lanes.join(levels)
    if np.abs(flat).max() >= _MOST_SCALED - 4:
        flat = _far_out(part, flat)
        levels = part.lanes.split(flat)
    if not np.isfinite(to_values(flat, part.step, part.values.dtype)).all():
        return None
    spread = np.repeat(part.classes, part.lanes.run)[: part.lanes.size]
    return Coded(part.lanes, levels, part.classes, build(flat, spread))


def _with_rates(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Rates come from how often numbers are taken in pieces of the lanes."""
    rates: list[np.ndarray | None] = [None] * len(wanted)
    pieces = [(_pieces(w.scaled), _pieces(w.classes)) for w in wanted]
    for _ in range(2):
        samples = [Wanted(s, r, c) for (s, c), r in zip(pieces, rates, strict=True)]
        rates = [
            _rates(levels, sample.classes, int(w.classes.max()) + 1)
            for w, sample, levels in zip(wanted, samples, viterbi(samples), strict=True)
        ]
    return [dataclasses.replace(w, rates=r) for w, r in zip(wanted, rates, strict=True)]


def _pieces(lanes: np.ndarray) -> np.ndarray:
    """Some pieces of the lanes, evenly spread, as lanes of their own."""
    length = min(_PIECE, len(lanes))
    whole = lanes[: len(lanes) // length * length]
    pieces = whole.reshape(-1, length, whole.shape[1]).swapaxes(0, 1)
    pieces = pieces.reshape(length, -1)
    return np.ascontiguousarray(pieces[:, :: -(-pieces.shape[1] // _PIECES)])


def _rates(levels: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """What each number costs, in squared steps, from how often it was taken."""
    middle = min(int(np.abs(levels).max()), _MOST_RATES)
    width = 2 * middle + 1
    index = classes.astype(np.intp) * width + middle
    index += np.clip(levels, -middle, middle)
    seen = np.bincount(index.reshape(-1), minlength=count * width) + 0.25
    seen = seen.reshape(count, width)
    for odd in (0, 1):
        same = seen[:, (middle + odd) % 2 :: 2]
        same[:] = -np.log2(same / same.sum(axis=1, keepdims=True))
    return seen.astype(np.float32) * _BIT
