"""The NumPy engine of tropical operations, the reference that defines all results."""

import math

import numpy as np
from jaxtyping import Float, Int, Num

from ._batches import of_batches

# Bytes of the block that one pass works on: half of a typical L2 cache per core.
_BLOCK_BYTES = 1 << 18


def has_infinity(a: Num[np.ndarray, "..."]) -> bool:
    """Whether the dtype has infinities."""
    return a.dtype.kind == "f"


def contains(a: Num[np.ndarray, "..."], which: float) -> bool:
    """Whether the array contains this infinity."""
    return has_infinity(a) and bool((a == which).any())


def contains_nan(a: Num[np.ndarray, "..."]) -> bool:
    """Whether the array contains NaN."""
    return bool((a != a).any())


def reshape(a: Num[np.ndarray, "..."], shape: tuple[int, ...]) -> np.ndarray:
    """Change the shape."""
    return a.reshape(shape)


def identity(
    shape: tuple[int, ...], like: Float[np.ndarray, "..."], kind: str
) -> Float[np.ndarray, "..."]:
    """Return 0 on the diagonal and the zero elsewhere."""
    out = np.full(shape, _zero(kind), like.dtype)
    np.einsum("...ii->...i", out)[...] = 0
    return out


@of_batches(np)
def matmul(
    a: Num[np.ndarray, "n k"], b: Num[np.ndarray, "k m"], kind: str
) -> Num[np.ndarray, "n m"]:
    """Compute the product, a block of rows at a time."""
    optimum = _optimum(kind)
    dtype = np.result_type(a, b)
    if a.shape[1] == 0:
        return np.full((a.shape[0], b.shape[1]), _zero(kind), dtype)
    out = np.empty((a.shape[0], b.shape[1]), dtype)
    rows = max(1, _BLOCK_BYTES // max(1, b.shape[1] * dtype.itemsize))
    for first in range(0, a.shape[0], rows):
        part, block = a[first : first + rows], out[first : first + rows]
        np.add(part[:, :1], b[0], out=block)
        product = np.empty_like(block)
        for k in range(1, a.shape[1]):
            # One k at a time, in place: all terms at once would need n * k * m numbers.
            np.add(part[:, k, None], b[k], out=product)
            optimum(block, product, out=block)
    return out


@of_batches(np)
def matmul_with_argument(
    a: Num[np.ndarray, "n k"], b: Num[np.ndarray, "k m"], kind: str
) -> tuple[Num[np.ndarray, "n m"], Int[np.ndarray, "n m"]]:
    """Compute the product and the first k of each optimum; -1 for no term."""
    out = matmul(a, b, kind)
    which = np.full(out.shape, -1)
    # From the last to the first: the first of equal terms is written last.
    for k in range(a.shape[1] - 1, -1, -1):
        which[a[:, k, None] + b[k] == out] = k
    which[out == _zero(kind)] = -1
    return out, which


def mark_missing(
    before: Int[np.ndarray, "*batch n n"], out: Num[np.ndarray, "*batch n n"], kind: str
) -> Int[np.ndarray, "*batch n n"]:
    """Write -1 where no edge leads to j: from j itself, and where no walk does."""
    on = np.eye(out.shape[-1], dtype=bool)
    return np.where(on | (out == _zero(kind)), -1, before)


def viterbi(
    scores: Num[np.ndarray, "batch steps states"],
    transitions: Num[np.ndarray, "states states"],
    kind: str,
) -> tuple[Int[np.ndarray, "batch steps"], Num[np.ndarray, " batch"]]:
    """Find the optimal sequence of states of each batch."""
    best = {"max": np.argmax, "min": np.argmin}[kind]
    total = scores[:, 0].astype(np.result_type(scores, transitions))
    before: list[np.ndarray] = []
    for t in range(1, scores.shape[1]):
        terms = total[:, :, None] + transitions
        before.append(best(terms, axis=1))
        total = np.take_along_axis(terms, before[-1][:, None], axis=1)[:, 0]
        total = total + scores[:, t]
    state = best(total, axis=1)[:, None]
    weight = np.take_along_axis(total, state, axis=1)[:, 0]
    path = [state]
    for came in reversed(before):
        path.append(np.take_along_axis(came, path[-1], axis=1))
    return np.concatenate(path[::-1], axis=1), weight


@of_batches(np)
def predecessors(d: Num[np.ndarray, "n n"], kind: str) -> Int[np.ndarray, "n n"]:
    """Return the vertex before j on the optimal walk from i; i itself for none."""
    better = {"max": np.greater, "min": np.less}[kind]
    out, count = d.copy(), len(d)
    diagonal = np.einsum("ii->i", out)
    _optimum(kind)(diagonal, 0, out=diagonal)
    before = np.repeat(np.arange(count)[:, None], count, axis=1)
    for k in range(count):
        through = out[:, k, None] + out[k]
        shorter = better(through, out)
        before = np.where(shorter, before[k], before)
        out = np.where(shorter, through, out)
    return before


@of_batches(np)
def closure(d: Num[np.ndarray, "n n"], kind: str) -> Num[np.ndarray, "n n"]:
    """Run the Floyd-Warshall algorithm; stop at the first improving cycle."""
    optimum = _optimum(kind)
    out = d.copy()
    diagonal = np.einsum("ii->i", out)  # a writable view
    optimum(diagonal, 0, out=diagonal)
    for k in range(len(out)):
        # All walks through vertices before k are known here. So any cycle with k as its
        # highest vertex is found before its weight can diverge.
        if out[k, k] != 0:
            raise ValueError(
                f"vertex {k} lies on a cycle of weight {out[k, k]}, which improves "
                "in every round: the optimal walk does not exist."
            )
        # Row and column k do not change in this step, because out[k, k] is 0.
        optimum(out, out[:, k, None] + out[k], out=out)
    return out


def polynomial(
    coefficients: Num[np.ndarray, " monomials"],
    exponents: Num[np.ndarray, "monomials variables"],
    points: Num[np.ndarray, "points variables"],
    kind: str,
) -> Num[np.ndarray, " points"]:
    """Evaluate the optimal monomial at each point, a block of points at a time."""
    zero, optimum = _zero(kind), _optimum(kind)
    out = np.empty(len(points), np.result_type(coefficients, exponents, points))
    rows = max(1, _BLOCK_BYTES // (len(coefficients) * out.itemsize))
    for first in range(0, len(points), rows):
        part = points[first : first + rows]
        is_zero = part == zero
        terms = np.where(is_zero, 0, part) @ exponents.T + coefficients
        if is_zero.any():
            # 0 * inf is NaN, but the zero to the power 0 is the one, else the zero.
            has_zero_factor = (
                is_zero.astype(out.dtype) @ (exponents != 0).astype(out.dtype).T
            )
            if (is_zero.any(axis=0) & (exponents < 0).any(axis=0)).any():
                raise ValueError(
                    "polynomial: a negative power of an infinite point is undefined."
                )
            terms = np.where(has_zero_factor > 0, zero, terms)
        out[first : first + rows] = optimum.reduce(terms, axis=1)
    return out


def convolve(
    short: Num[np.ndarray, " n"], long: Num[np.ndarray, " m"], kind: str
) -> Num[np.ndarray, " n+m-1"]:
    """Make one pass over the long sequence for each element of the short one."""
    optimum, dtype = _optimum(kind), np.result_type(short, long)
    out = np.empty(len(short) + len(long) - 1, dtype)
    out[: len(long)] = short[0] + long
    for i in range(1, len(short)):
        shifted = short[i] + long
        out[i + len(long) - 1] = shifted[-1]
        inside = out[i : i + len(long) - 1]
        optimum(inside, shifted[:-1], out=inside)
    return out


def _zero(kind: str) -> float:
    return {"max": -math.inf, "min": math.inf}[kind]


def _optimum(kind: str) -> np.ufunc:
    return {"max": np.maximum, "min": np.minimum}[kind]
