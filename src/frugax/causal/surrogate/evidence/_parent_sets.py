"""Bayesian scores of every parent set, and their posterior over all orders.

Arrays have the batch *last*: loops over subsets then work on whole rows of memory.
A parent set of child i is a number whose bit t says whether the t-th of the other
variables, in ascending order, is a parent.
"""

from functools import lru_cache
from typing import Any

import numpy as np

_EDGE_LOG_ODDS = np.float32(-1.2)  # of an edge before any data: about one in four
_SMALL = np.float32(1e-3)
NEVER = -1e9  # log-probability of what cannot be; -inf would give NaN in differences


@lru_cache
def others(width: int) -> np.ndarray:
    """The other variables of each [width, width - 1], ascending."""
    return np.array([[j for j in range(width) if j != i] for i in range(width)])


@lru_cache
def members(width: int) -> np.ndarray:
    """Whether the t-th other variable is in a set [2 ** (width - 1), width - 1]."""
    sets = np.arange(2 ** (width - 1))[:, None]
    return (sets >> np.arange(width - 1) & 1).astype(np.float32)


@lru_cache
def parents(width: int) -> np.ndarray:
    """Whether each variable is in a child's set [width, width, 2 ** (width - 1)].

    Child, variable, set; the rows of the child itself are 0.
    """
    found = np.zeros((width, width, 2 ** (width - 1)), np.float32)
    for child, other in enumerate(others(width)):
        found[child, other] = members(width).T
    return found


@lru_cache
def _table(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Where variable j is among the others of i [j, i], and 0 where it is i."""
    j, i = np.indices((width, width))
    place = np.clip(j - (j > i), 0, max(width - 2, 0))
    return place, (j != i).astype(np.float32)


def squared(values: Any) -> Any:
    """From child and other variable to parent and child, zero on the diagonal.

    Args:
        values: [batch, width, width - 1], of NumPy or of JAX.
    """
    width = values.shape[1]
    place, off = _table(width)
    return values[:, np.arange(width)[None], place] * off[None]


def scores(
    gram: np.ndarray, n: np.ndarray, mask: np.ndarray, ridge: float
) -> np.ndarray:
    """Log marginal likelihood of each child given each set of parents, and a prior.

    Linear regression on the columns of the parents, weights normal with variance
    1 / `ridge` of the noise, and the noise's scale integrated out. Parents are
    eliminated one after the other, each step doubling the sets: with and without it.

    Args:
        gram: centred moments [width, k, width, k, width, batch]: child, then kind of
            column and variable, twice.
        n: rows for each child [width, batch].
        mask: 1 for variables that are there, else 0 [width, batch].
        ridge: precision of a weight, relative to the noise's.

    Returns:
        [width, 2 ** (width - 1), batch]
    """
    width, k, *_, batch = gram.shape
    size = (width - 1) * k
    diagonal = np.arange(size)
    fit = np.empty((width, 2 ** (width - 1), batch), np.float32)
    for child, other in enumerate(others(width)):
        columns = np.append((other[:, None] + np.arange(k) * width).ravel(), child)
        flat = gram[child].reshape(k * width, k * width, batch)
        m = flat[columns[:, None], columns][None]
        m[0, diagonal, diagonal] += ridge
        m[0, -1, -1] += _SMALL
        log_det = np.zeros((1, batch), np.float32)
        for _ in range(width - 1):
            left, det = m, np.float32(1)
            for _ in range(k):
                pivot = left[:, 0, 0]
                det = det * (pivot / np.float32(ridge))
                scaled = left[:, 0, 1:] / pivot[:, None]
                drop = left[:, 1:, None, 0] * scaled[:, None]
                left = np.subtract(left[:, 1:, 1:], drop, out=drop)
            m = np.concatenate([m[:, k:, k:], left])
            log_det = np.concatenate([log_det, log_det + np.log(det)])
        residual = np.log(np.maximum(m[:, 0, 0], _SMALL))
        fit[child] = -0.5 * (log_det + np.maximum(n[child] - 1, 0) * residual)
    fit -= fit[:, :1].copy()
    # A set with an absent variable in it cannot be; an absent child has no parents.
    absent = (1 - mask)[others(width)]
    outside = np.einsum("st,wtb->wsb", members(width), absent)
    number = members(width).sum(-1)[None, :, None]
    outside += number * (1 - mask)[:, None]
    return np.where(outside > 0, np.float32(NEVER), fit + _EDGE_LOG_ODDS * number)


def log_sum_exp(x: np.ndarray, axis: int) -> np.ndarray:
    """Logarithm of the sum of exponentials along an axis."""
    top = x.max(axis)
    return top + np.log(np.exp(x - np.expand_dims(top, axis)).sum(axis))


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    high, low = np.maximum(a, b), np.minimum(a, b)
    return high + np.log1p(np.exp(low - high))


def _over_subsets(x: np.ndarray, *, up: bool) -> np.ndarray:
    """For each set the log-sum over its subsets (`up`: over its supersets)."""
    width, sets, batch = x.shape
    low = 1
    while low < sets:
        x = x.reshape(width, sets // (2 * low), 2, low, batch)
        off, on = x[:, :, 0], x[:, :, 1]
        both = _add(off, on)
        pair = (both, on) if up else (off, both)
        x = np.stack(pair, axis=2).reshape(width, sets, batch)
        low *= 2
    return x


@lru_cache
def _levels(width: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """By size of set: the sets, each without one member, that member, and the rest."""
    found = []
    for size in range(1, width + 1):
        sets = [u for u in range(2**width) if u.bit_count() == size]
        inside = [[i for i in range(width) if u >> i & 1] for u in sets]
        less = [[u & ~(1 << i) for i in of] for u, of in zip(sets, inside, strict=True)]
        # `u` without i, counted in the bits of the others of i.
        squeezed = [
            [
                (v & ((1 << i) - 1)) | (v >> (i + 1) << i)
                for v, i in zip(a, b, strict=True)
            ]
            for a, b in zip(less, inside, strict=True)
        ]
        found.append(tuple(np.array(a) for a in (sets, less, inside, squeezed)))
    return tuple(found)


@lru_cache
def _backwards(width: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """By size of set, downwards: each set with one more, that one, and the set."""
    found = []
    for size in range(width - 1, -1, -1):
        sets = [u for u in range(2**width) if u.bit_count() == size]
        out = [[i for i in range(width) if not u >> i & 1] for u in sets]
        more = [[u | (1 << i) for i in of] for u, of in zip(sets, out, strict=True)]
        squeezed = [
            [(u & ((1 << i) - 1)) | (u >> (i + 1) << i) for i in of]
            for u, of in zip(sets, out, strict=True)
        ]
        found.append(tuple(np.array(a) for a in (sets, more, out, squeezed)))
    return tuple(found)


@lru_cache
def _places(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where each set lies among those ordered by size, and U, U + i of each child."""
    by_size = np.concatenate([level[0] for level in _levels(width)])
    place = np.zeros(2**width, int)
    place[by_size] = np.arange(1, 2**width)
    squeezed = np.arange(2 ** (width - 1))
    without = np.array(
        [(squeezed >> i << (i + 1)) | (squeezed & ((1 << i) - 1)) for i in range(width)]
    )
    with_child = without | (1 << np.arange(width))[:, None]
    return place, by_size, without, with_child


def order_posterior(score: np.ndarray) -> np.ndarray:
    """Posterior of each child's parent set, averaged over all orders of the variables.

    Exact: no graph is left out, and none with a cycle is in it. A graph counts once
    for each order that it agrees with.

    Args:
        score: from `scores` [width, 2 ** (width - 1), batch].

    Returns:
        Log-probabilities of the same shape.
    """
    width = score.shape[0]
    place, _, without, with_child = _places(width)
    reach = _over_subsets(score, up=False)
    before = [np.zeros_like(score[0, :1])]  # by size of set
    start = 0
    for _, less, inside, squeezed in _levels(width):
        ways = before[-1][place[less] - start] + reach[inside, squeezed]
        start += before[-1].shape[0]
        before.append(log_sum_exp(ways, 1))
    after = [np.zeros_like(score[0, :1])]
    end = 2**width - 1  # where the sets of the level above begin
    for sets, more, out, squeezed in _backwards(width):
        ways = after[-1][place[more] - end] + reach[out, squeezed]
        end -= len(sets)
        after.append(log_sum_exp(ways, 1))
    first = np.concatenate(before, axis=0)[place]
    last = np.concatenate(after[::-1], axis=0)[place]
    around = first[without] + last[with_child]
    ways = score + _over_subsets(around, up=True)
    return ways - log_sum_exp(ways, 1)[:, None]
