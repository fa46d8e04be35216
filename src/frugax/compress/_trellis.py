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

import numpy as np

# Steps of the recursion whose costs are computed in one go.
_TILE = 32


def best_levels(
    scaled: np.ndarray, *, rates: np.ndarray | None = None, classes: np.ndarray | None
) -> np.ndarray:
    """The path of whole numbers with the least squared error, or error plus rate.

    Args:
        scaled: weights over their step, float32, `(steps, lanes)`: each column is a
            lane of its own, which begins in state 0.
        rates: what each whole number costs, in squared steps, `(classes, numbers)`,
            float32; an odd count, the number 0 in the middle; the ends stand for all
            beyond them. None if all cost the same.
        classes: the row of `rates` for each weight, `(steps, lanes)`; only with them.

    Returns:
        The numbers, int32, `(steps, lanes)`. Of two equal paths the one whose oldest
        differing bit is 0.
    """
    steps, lanes = scaled.shape
    # Indices of a cost: its state's bits, the oldest first, then the lane.
    cost = np.full((2, 2, 2, lanes), np.inf, np.float32)
    cost[0, 0, 0] = 0
    by_low, by_high = np.empty((2, 2, 2, 2, lanes), np.float32)
    high = np.empty((steps, 8, lanes), bool)
    for first in range(0, steps, _TILE):
        rows = slice(first, min(steps, first + _TILE))
        tile = _branch_costs(
            scaled[rows], rates, None if classes is None else classes[rows]
        )
        for t, branch in enumerate(tile, start=first):
            np.add(cost[0][:, :, None], branch, out=by_low)
            np.add(cost[1][:, :, None], branch[::-1], out=by_high)
            # Strictly less: equal paths are decided alike everywhere.
            np.less(by_high, by_low, out=high[t].reshape(by_low.shape))
            np.minimum(by_low, by_high, out=cost)
    bits = _trace_back(cost.reshape(8, lanes).argmin(axis=0), high)
    return _nearest(scaled, residues(bits))


def residues(bits: np.ndarray) -> np.ndarray:
    """What the whole numbers are modulo 4, from the branch bits along axis 0."""
    residue = bits << 1
    residue[2:] ^= bits[:-2] << 1
    residue[3:] ^= bits[:-3] << 1
    residue[1:] |= bits[:-1]
    return residue


def _branch_costs(
    scaled: np.ndarray, rates: np.ndarray | None, classes: np.ndarray | None
) -> np.ndarray:
    """Cost of each branch, `(steps, b[t-2], b[t-1], b[t], lanes)`, if b[t-3] is 0.

    Where b[t-3] is 1 the costs are those with b[t-2] turned over.
    """
    steps, lanes = scaled.shape
    out = np.empty((steps, 2, 2, 2, lanes), np.float32)
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
                assert classes is not None  # they come together
                middle = rates.shape[1] // 2
                number = nearest * np.float32(4) + residue
                np.clip(number, -middle, middle, out=number)
                number += classes * np.float32(rates.shape[1]) + np.float32(middle)
                gap += rates.reshape(-1)[number.astype(np.intp)]
            out[:, 0, odd, q] = gap
            out[:, 1, odd, 1 - q] = gap
    return out


def _trace_back(state: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The branch bits of the paths that end in these states, `(steps, lanes)`."""
    steps, _, lanes = high.shape
    bits = np.empty((steps, lanes), np.uint8)
    lane = np.arange(lanes)
    for t in range(steps - 1, -1, -1):
        np.bitwise_and(state, 1, out=bits[t], casting="unsafe")
        from_high = high[t].reshape(-1)[state * lanes + lane]
        state = (state >> 1) + (from_high.astype(np.intp) << 2)
    return bits


def _nearest(scaled: np.ndarray, residue: np.ndarray) -> np.ndarray:
    """The nearest whole number of each residue modulo 4."""
    fours = np.rint((scaled - residue.astype(np.float32)) * np.float32(0.25))
    return fours.astype(np.int32) * 4 + residue
