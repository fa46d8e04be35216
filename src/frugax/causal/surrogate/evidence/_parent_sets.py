"""Bayesian scores of all parent sets, and their posterior averaged over causal orders.

Arrays have the batch *last*, so that loops over subsets work on contiguous memory. A
parent set of child i is a bit mask: bit t is set if the t-th of the other variables, in
ascending order, is a parent.

References:
    Friedman & Koller 2003, Machine Learning 50:95-125 (averaging over orders); Koivisto
    & Sood 2004, JMLR 5:549-573 (the exact sums over subsets).
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int

Scores = Float[np.ndarray, "width sets batch"]

_EDGE_LOG_ODDS = np.float32(-1.2)  # prior of an edge: about one in four
_SMALL = np.float32(1e-3)  # keeps the residual variance of perfect fits above 0
NEVER = -1e9  # log-probability of impossible sets; -inf - -inf would be NaN


@lru_cache
def other_variables(width: int) -> Int[np.ndarray, "{width} {width}-1"]:
    """List the other variables of each variable, in ascending order."""
    return np.array([[j for j in range(width) if j != i] for i in range(width)])


@lru_cache
def set_members(width: int) -> Float[np.ndarray, "sets {width}-1"]:
    """Return 1 where the t-th other variable is in a set."""
    sets = np.arange(2 ** (width - 1))[:, None]
    return (sets >> np.arange(width - 1) & 1).astype(np.float32)


@lru_cache
def set_membership(width: int) -> Float[np.ndarray, "{width} {width} sets"]:
    """Return 1 where a variable is in a set of a child: child, variable, set."""
    found = np.zeros((width, width, 2 ** (width - 1)), np.float32)
    for child, other in enumerate(other_variables(width)):
        found[child, other] = set_members(width).T
    return found


@lru_cache
def _table(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Position of variable j among the others of i, `[j, i]`, and whether j != i."""
    j, i = np.indices((width, width))
    place = np.clip(j - (j > i), 0, max(width - 2, 0))
    return place, (j != i).astype(np.float32)


def to_parent_child(
    values: Float[np.ndarray, "batch width others"],
) -> Float[np.ndarray, "batch width width"]:
    """Rearrange `[child, other variable]` to `[parent, child]`, 0 on the diagonal."""
    width = values.shape[1]
    place, off = _table(width)
    return values[:, np.arange(width)[None], place] * off[None]


def log_scores(
    gram: Float[np.ndarray, "width k width k width batch"],
    n: Float[np.ndarray, "width batch"],
    mask: Float[np.ndarray, "width batch"],
    ridge: float,
) -> Scores:
    """Compute the log marginal likelihood of each parent set, plus a log prior.

    The model is a Bayesian linear regression on the columns of the parents, with a
    normal prior on the weights and the scale of the noise integrated out. Gaussian
    elimination removes one parent after the other; each step doubles the number of
    sets, those with and those without that parent, so all share their work.
    """
    width, k, *_, batch = gram.shape
    size = (width - 1) * k
    diagonal = np.arange(size)
    fit = np.empty((width, 2 ** (width - 1), batch), np.float32)
    for child, other in enumerate(other_variables(width)):
        columns = np.append((other[:, None] + np.arange(k) * width).ravel(), child)
        flat = gram[child].reshape(k * width, k * width, batch)
        m = flat[columns[:, None], columns][None]
        m[0, diagonal, diagonal] += ridge
        m[0, -1, -1] += _SMALL
        log_det = np.zeros((1, batch), np.float32)
        for _ in range(width - 1):
            left, det = m, np.float32(1)
            for _ in range(k):
                # Without rounding a pivot is at least the ridge.
                pivot = np.maximum(left[:, 0, 0], np.float32(ridge))
                # The product of pivots / ridge is |I + X'X / ridge|, the penalty for
                # parents that the marginal likelihood contains.
                det = det * (pivot / np.float32(ridge))
                scaled = left[:, 0, 1:] / pivot[:, None]
                drop = left[:, 1:, None, 0] * scaled[:, None]
                left = np.subtract(left[:, 1:, 1:], drop, out=drop)
            # Sets without this parent first, then those with it: the next higher bit.
            m = np.concatenate([m[:, k:, k:], left])
            log_det = np.concatenate([log_det, log_det + np.log(det)])
        # Close to the BGe score (Geiger & Heckerman 2002, Annals of Statistics
        # 30:1412-1440), with one row less for the mean, which was fitted.
        residual = np.log(np.maximum(m[:, 0, 0], _SMALL))
        fit[child] = -0.5 * (log_det + np.maximum(n[child] - 1, 0) * residual)
    # Only differences between sets count, and small numbers keep more of their digits
    # in the sums over orders.
    fit -= fit[:, :1].copy()
    # Sets with an absent variable are impossible, as are parents of an absent child.
    absent = (1 - mask)[other_variables(width)]
    outside = np.einsum("st,wtb->wsb", set_members(width), absent)
    number = set_members(width).sum(-1)[None, :, None]
    outside += number * (1 - mask)[:, None]
    return np.where(outside > 0, np.float32(NEVER), fit + _EDGE_LOG_ODDS * number)


def log_sum_exp(x: Float[np.ndarray, "..."], axis: int) -> Float[np.ndarray, "..."]:
    """Compute the logarithm of the sum of exponentials along an axis."""
    top = x.max(axis)
    return top + np.log(np.exp(x - np.expand_dims(top, axis)).sum(axis))


def _log_add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # The exponent is at most 0, so that nothing overflows.
    high, low = np.maximum(a, b), np.minimum(a, b)
    return high + np.log1p(np.exp(low - high))


def _zeta_transform(x: np.ndarray, *, up: bool) -> np.ndarray:
    """Log-sum over the subsets of each set (`up`: over its supersets)."""
    width, sets, batch = x.shape
    # Yates' butterflies: one pass for each bit and not one for each pair of sets
    # (Björklund et al. 2007, STOC, "Fourier meets Möbius").
    low = 1
    while low < sets:
        x = x.reshape(width, sets // (2 * low), 2, low, batch)
        off, on = x[:, :, 0], x[:, :, 1]
        both = _log_add(off, on)
        pair = (off, both)
        if up:
            pair = (both, on)
        x = np.stack(pair, axis=2).reshape(width, sets, batch)
        low *= 2
    return x


@lru_cache
def _steps(width: int, *, up: bool) -> tuple[tuple[np.ndarray, ...], ...]:
    """List the steps between sets of variables, by size (`up`: the largest first).

    For each size: the sets; each with one variable removed (`up`: added); that
    variable; and the smaller of the two sets, in the bits of the variable's others.
    """
    every, found = np.arange(2**width), []
    has = every[:, None] >> np.arange(width) & 1
    for size in range(width - 1, -1, -1) if up else range(1, width + 1):
        sets = every[has.sum(1) == size]
        i = np.nonzero(has[sets] != up)[1].reshape(len(sets), -1)
        other = sets[:, None] ^ (1 << i)
        smaller = np.minimum(sets[:, None], other)
        inside = smaller >> 1 & -(1 << i) | smaller & ((1 << i) - 1)
        found.append((sets, other, i, inside))
    return tuple(found)


def order_posterior(score: Scores) -> Scores:
    """Compute log-posteriors of parent sets, averaged over all orders of variables.

    The sum is exact over all acyclic graphs; a graph counts once for each order that it
    is compatible with. `score` is from `log_scores`.
    """
    width, sets, batch = score.shape
    reach = _zeta_transform(score, up=False)
    # For each set of variables: the sum over the orders in which they come first, and
    # over those in which the rest comes last.
    first = np.zeros((2 * sets, batch), score.dtype)
    last = first.copy()
    for of_size, less, i, inside in _steps(width, up=False):
        first[of_size] = log_sum_exp(first[less] + reach[i, inside], 1)
    for of_size, more, i, inside in _steps(width, up=True):
        last[of_size] = log_sum_exp(last[more] + reach[i, inside], 1)
    # Each child's sets of others as sets of all variables.
    bit = 1 << np.arange(width)[:, None]
    without = (np.arange(sets) & -bit) << 1 | np.arange(sets) & (bit - 1)
    around = first[without] + last[without | bit]
    ways = score + _zeta_transform(around, up=True)
    return ways - log_sum_exp(ways, 1)[:, None]
