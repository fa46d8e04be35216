"""Trellis-coded quantisation: which whole numbers a row of weights should become.

All numbers of a lane share one grid of whole numbers, but not every one is allowed
everywhere: a number must be even or odd as the one before says. What is saved by
naming only half of them is more than what is lost, since an encoder that looks ahead
finds a path of near numbers. Of the 1.53 dB that a uniform grid loses, a trellis of 8
states wins back about one.

The trellis is Ungerboeck's with 8 states, its state the last three branch bits b:

    n[t] mod 4 = 2 q[t] + b[t-1],    q[t] = b[t] ^ b[t-2] ^ b[t-3]

Finding the best path is a min-plus product of a vector with one 8 x 8 matrix for each
number, of which two entries in a column are finite: the recursion in `best_levels`.

References:
    Ungerboeck 1982, IEEE Trans. Information Theory 28(1), 55-67 (the trellis);
    Marcellin & Fischer 1990, IEEE Trans. Communications 38(1), 82-93 (quantising);
    Marcellin 1994, IEEE Trans. Communications 42(1), 14-16 (with an entropy coder).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

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


def best_levels(wanted: Sequence[Wanted]) -> list[np.ndarray]:
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
