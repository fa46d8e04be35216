"""The inner loops of the trellis codec, compiled by Numba if it is installed.

They do the operations of the NumPy code in the same order on the same types, so every
bit of a file is the same with and without Numba: products by powers of two are exact,
and Numba does not contract or reorder the others. Without Numba they are plain Python,
which tests compare with NumPy.
"""

import functools
import importlib
import inspect
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ._tables import LOWEST_STATE, SCALE_BITS

# Importing Numba takes as long as NumPy takes to code this many numbers, about, and the
# second as many to decode. Both are counted over all calls: whoever buys when the rent
# so far reaches the price pays twice the least at most (Karlin et al. 1988,
# Algorithmica 3). One call has whole rows of a chunk, and so mostly fewer numbers.
_MIN_ENCODED, _MIN_DECODED = 1 << 22, 1 << 25
_SO_FAR: Counter[str] = Counter()
# Lanes that take their steps together: their costs and decisions stay in the cache.
_LANES = 64


class Kernels(NamedTuple):
    """The loops, compiled or plain.

    Attributes:
        find_paths: the Viterbi algorithm; see `find_paths`.
        push_lanes: the rANS encoder; see `push_lanes`.
        pop_lanes: the rANS decoder; see `pop_lanes`.
    """

    find_paths: Callable[..., None]
    push_lanes: Callable[..., tuple[int, int]]
    pop_lanes: Callable[..., int]


def load_kernels(*, encode: int = 0, decode: int = 0) -> Kernels | None:
    """Return the compiled loops; None until importing Numba would have paid for itself.

    Args:
        encode: how many numbers there are to code now.
        decode: how many numbers there are to decode now.
    """
    _SO_FAR.update(encode=encode, decode=decode)
    worth = _SO_FAR["encode"] >= _MIN_ENCODED or _SO_FAR["decode"] >= _MIN_DECODED
    if not (worth or _compile.cache_info().currsize):
        return None
    return _compile()


@functools.cache
def _compile() -> Kernels | None:
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:  # also a Numba that does not support this NumPy
        return None
    # Without the default error model's checks for zero; IEEE 754 stays.
    jit = numba.njit(cache=True, nogil=True, error_model="numpy")
    # Import hooks that check types (jaxtyping's, beartype's) wrap functions, and Numba
    # cannot compile a wrapper.
    loops = map(inspect.unwrap, (find_paths, push_lanes, pop_lanes))
    return Kernels(*map(jit, loops))


def find_paths(
    scaled: np.ndarray,
    rates: np.ndarray,
    classes: np.ndarray,
    starts: np.ndarray,
    integers: np.ndarray,
) -> None:
    """Find the path of each lane, as `viterbi` does, into `integers`.

    Args:
        scaled: weights over their step, float32, `(steps, lanes)`.
        rates: the cost of each integer, float32, `(classes, integers)`; no columns if
            all cost the same.
        classes: the row of `rates` for each weight, `(steps, lanes)`.
        starts: the state that each lane starts in.
        integers: int32, `(steps, lanes)`.
    """
    steps, lanes = scaled.shape
    quarter, four, sixteen = np.float32(0.25), np.float32(4), np.float32(16)
    middle = rates.shape[1] // 2
    rated = rates.shape[1] > 0
    flat = rates.reshape(-1)
    decisions = np.empty((steps, _LANES), np.uint8)
    cost = np.empty((8, _LANES), np.float32)
    gaps = np.empty((4, _LANES), np.float32)
    index = np.empty((4, _LANES), np.int32)
    state = np.empty(_LANES, np.int32)
    c0, c1, c2, c3 = cost[0], cost[1], cost[2], cost[3]
    c4, c5, c6, c7 = cost[4], cost[5], cost[6], cost[7]
    g0, g1, g2, g3 = gaps[0], gaps[1], gaps[2], gaps[3]
    for first in range(0, lanes, _LANES):
        width = min(_LANES, lanes - first)
        cost[:] = np.float32(np.inf)
        for i in range(width):
            cost[starts[first + i], i] = np.float32(0)
        for t in range(steps):
            row = scaled[t, first : first + width]
            for residue in range(4):
                # The distance to the nearest integer of this residue, in fours.
                value, gap_row, index_row = (
                    np.float32(residue),
                    gaps[residue],
                    index[residue],
                )
                for i in range(width):
                    gap = (row[i] - value) * quarter
                    nearest = np.rint(gap)
                    gap = gap - nearest
                    gap_row[i] = gap * gap * sixteen
                    index_row[i] = np.int32(nearest * four + value)
            if rated:
                of_class = classes[t, first : first + width]
                for residue in range(4):
                    gap_row, index_row = gaps[residue], index[residue]
                    for i in range(width):
                        n = min(max(index_row[i], -middle), middle) + middle
                        gap_row[i] += flat[np.int64(of_class[i]) * (2 * middle + 1) + n]
            decided = decisions[t]
            for i in range(width):
                # A state is its last three branch bits, the oldest first. The oldest
                # drops out: two predecessors compete.
                r0, r1, r2, r3 = g0[i], g1[i], g2[i], g3[i]
                k0, k1, k2, k3 = c0[i], c1[i], c2[i], c3[i]
                k4, k5, k6, k7 = c4[i], c5[i], c6[i], c7[i]
                x0, y0 = k0 + r0, k4 + r2
                x1, y1 = k0 + r2, k4 + r0
                x2, y2 = k1 + r1, k5 + r3
                x3, y3 = k1 + r3, k5 + r1
                x4, y4 = k2 + r2, k6 + r0
                x5, y5 = k2 + r0, k6 + r2
                x6, y6 = k3 + r3, k7 + r1
                x7, y7 = k3 + r1, k7 + r3
                bits = np.int32(y0 < x0) | (np.int32(y1 < x1) << 1)
                bits |= (np.int32(y2 < x2) << 2) | (np.int32(y3 < x3) << 3)
                bits |= (np.int32(y4 < x4) << 4) | (np.int32(y5 < x5) << 5)
                bits |= (np.int32(y6 < x6) << 6) | (np.int32(y7 < x7) << 7)
                c0[i], c1[i] = min(x0, y0), min(x1, y1)
                c2[i], c3[i] = min(x2, y2), min(x3, y3)
                c4[i], c5[i] = min(x4, y4), min(x5, y5)
                c6[i], c7[i] = min(x6, y6), min(x7, y7)
                decided[i] = np.uint8(bits)
        for i in range(width):
            best = 0
            for s in range(1, 8):
                if cost[s, i] < cost[best, i]:
                    best = s
            state[i] = best
        for t in range(steps - 1, -1, -1):
            row, decided, out = scaled[t], decisions[t], integers[t]
            for i in range(width):
                # A state has b[t-2], b[t-1], b[t]; the decision is b[t-3].
                now = state[i]
                oldest = (np.int32(decided[i]) >> now) & 1
                residue = 2 * ((now & 1) ^ (now >> 2) ^ oldest) + ((now >> 1) & 1)
                fours = np.rint((row[first + i] - np.float32(residue)) * quarter)
                out[first + i] = np.int32(fours) * 4 + residue
                state[i] = (now >> 1) | (oldest << 2)


def push_lanes(
    levels: np.ndarray,
    last: int,
    classes: np.ndarray,
    run: int,
    lowest: np.ndarray,
    halves: np.ndarray,
    raw_bits: int,
    frequencies: np.ndarray,
    starts: np.ndarray,
    states: np.ndarray,
    words: np.ndarray,
) -> tuple[int, int]:
    """Code the integers of a block.

    Returns the index of the first word, and how many integers have no symbol.

    Args:
        levels: int32, `(steps, lanes)`.
        last: how many numbers the last lane has.
        classes: the class of each run, `(steps / run, lanes)`.
        run: how many numbers share a class.
        lowest: as in `Tables`, int64.
        halves: as in `Tables`, int64.
        raw_bits: as in `Tables`.
        frequencies: as in `Tables`, float64.
        starts: where the range of each symbol starts, float64.
        states: of each lane, float64; they start at the lowest and are changed.
        words: uint16; filled from the end.
    """
    steps, lanes = levels.shape
    at, far, shift = len(words), 0, 2 + raw_bits
    per_step = float(1 << (32 - SCALE_BITS))
    total = float(1 << SCALE_BITS)
    for t in range(steps - 1, -1, -1):
        row = t // run
        active = lanes if t < last else lanes - 1
        for lane in range(active - 1, -1, -1):
            n = levels[t, lane]
            c = np.int64(classes[row, lane])
            half = (n >> shift) - lowest[c]
            if half < 0 or half >= halves[c]:
                half = halves[c]
                far += 1
            symbol = 2 * half + ((n >> 1) & 1)
            f = frequencies[c, n & 1, symbol]
            x = states[lane]
            if x >= f * per_step:
                at -= 1
                large = np.int64(x)
                words[at] = large & 0xFFFF
                x = float(large >> 16)
            states[lane] = (
                x + math.floor(x / f) * (total - f) + starts[c, n & 1, symbol]
            )
    return at, far


def pop_lanes(
    states: np.ndarray,
    words: np.ndarray,
    classes: np.ndarray,
    run: int,
    last: int,
    frequencies: np.ndarray,
    symbol_levels: np.ndarray,
    levels: np.ndarray,
) -> int:
    """Decode the integers of a block; return how many words that takes.

    Args:
        states: of each lane, int64; changed.
        words: uint16.
        classes: the class of each run, `(steps / run, lanes)`.
        run: how many numbers share a class.
        last: how many numbers the last lane has.
        frequencies: as in `Tables`, int64.
        symbol_levels: the integer of each symbol, int32, of the same shape.
        levels: of the type that is decoded to, flat.
    """
    lanes, steps = len(states), len(classes) * run
    # The symbol of each slot, and where its range starts.
    slots = np.empty((len(frequencies), 2, 1 << SCALE_BITS), np.uint8)
    starts = np.empty_like(frequencies)
    for c in range(len(frequencies)):
        for odd in range(2):
            start = 0
            for symbol in range(256):
                starts[c, odd, symbol] = start
                stop = start + frequencies[c, odd, symbol]
                slots[c, odd, start:stop] = symbol
                start = stop
    # The three newest branch bits of each lane, the newest lowest.
    branches = np.zeros(lanes, np.int64)
    tile = np.empty((_LANES, lanes), np.int32)
    used = 0
    for first in range(0, steps, _LANES):
        height = min(_LANES, steps - first)
        for t in range(first, first + height):
            row, out = classes[t // run], tile[t - first]
            active = lanes if t < last else lanes - 1
            for lane in range(active):
                c, x, branch = np.int64(row[lane]), states[lane], branches[lane]
                odd = branch & 1
                slot = x & ((1 << SCALE_BITS) - 1)
                symbol = np.int64(slots[c, odd, slot])
                out[lane] = symbol_levels[c, odd, symbol]
                bit = (symbol ^ (branch >> 1) ^ (branch >> 2)) & 1
                branches[lane] = ((branch << 1) | bit) & 7
                x = frequencies[c, odd, symbol] * (x >> SCALE_BITS)
                x += slot - starts[c, odd, symbol]
                if x < LOWEST_STATE:
                    # Reading past the end is noticed by the count.
                    x <<= 16
                    if used < len(words):
                        x |= np.int64(words[used])
                    used += 1
                states[lane] = x
        for lane in range(lanes):
            end = height
            if lane == lanes - 1:
                end = max(0, min(height, last - first))
            at = lane * steps + first
            for t in range(end):
                levels[at + t] = tile[t, lane]
    return used
