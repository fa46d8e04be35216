"""Tropical operations on NumPy arrays: the reference that defines all results."""

import math

import numpy as np

# Bytes of the block that one pass works on: half of a typical L2 cache per core.
_BLOCK_BYTES = 1 << 18


def has_infinity(a: np.ndarray) -> bool:
    """Whether the dtype has infinities."""
    return a.dtype.kind == "f"


def contains(a: np.ndarray, which: float) -> bool:
    """Whether the array contains this infinity."""
    return has_infinity(a) and bool((a == which).any())


def contains_nan(a: np.ndarray) -> bool:
    """Whether the array contains NaN."""
    return bool((a != a).any())


def identity(n: int, like: np.ndarray, kind: str) -> np.ndarray:
    """Return 0 on the diagonal and the zero elsewhere."""
    out = np.full((n, n), _zero(kind), like.dtype)
    np.fill_diagonal(out, 0)
    return out


def matmul(a: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
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


def closure(d: np.ndarray, kind: str) -> np.ndarray:
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
    coefficients: np.ndarray, exponents: np.ndarray, points: np.ndarray, kind: str
) -> np.ndarray:
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


def convolve(short: np.ndarray, long: np.ndarray, kind: str) -> np.ndarray:
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
