"""The oracle: tropical operations on NumPy arrays, as plain as they can be."""

import math

import numpy as np

# Bytes of the block that one pass works on; it should stay in a core's cache.
_BLOCK_BYTES = 1 << 18


def has_zero(a: np.ndarray) -> bool:
    """Whether the dtype has infinities."""
    return a.dtype.kind == "f"


def holds_infinity(a: np.ndarray, which: float) -> bool:
    """Whether this infinity is in the array."""
    return has_zero(a) and bool((a == which).any())


def holds_nan(a: np.ndarray) -> bool:
    """Whether what is no number is in the array."""
    return bool((a != a).any())


def identity(n: int, like: np.ndarray, kind: str) -> np.ndarray:
    """0 on the diagonal, the zero elsewhere."""
    out = np.full((n, n), _zero(kind), like.dtype)
    np.fill_diagonal(out, 0)
    return out


def matmul(a: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
    """`out[i, j]` is the best `a[i, k] + b[k, j]`, a block of rows at a time."""
    better = _better(kind)
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
            np.add(part[:, k, None], b[k], out=product)
            better(block, product, out=block)
    return out


def closure(d: np.ndarray, kind: str) -> np.ndarray:
    """Floyd-Warshall; stops at the first cycle that gains.

    Raises:
        ValueError: there is such a cycle.
    """
    better = _better(kind)
    out = d.copy()
    diagonal = np.einsum("ii->i", out)  # a view that can be written to
    better(diagonal, 0, out=diagonal)
    for k in range(len(out)):
        # All walks through vertices before k are known here: so is any cycle whose
        # last vertex is k, before it can grow without bound.
        if out[k, k] != 0:
            raise ValueError(
                f"vertex {k} lies on a cycle of weight {out[k, k]}, which gets better "
                "with every round: there is no best walk."
            )
        better(out, out[:, k, None] + out[k], out=out)
    return out


def polynomial(
    coefficients: np.ndarray, exponents: np.ndarray, points: np.ndarray, kind: str
) -> np.ndarray:
    """The best monomial at each point, a block of points at a time.

    Raises:
        ValueError: an infinite point with a negative power.
    """
    zero, pick = _zero(kind), np.max if kind == "max" else np.min
    out = np.empty(len(points), np.result_type(coefficients, exponents, points))
    rows = max(1, _BLOCK_BYTES // (len(coefficients) * out.itemsize))
    for first in range(0, len(points), rows):
        part = points[first : first + rows]
        gone = part == zero
        terms = np.where(gone, 0, part) @ exponents.T + coefficients
        if gone.any():
            # 0 * inf is not a number; the zero to the power 0 is one, else zero.
            swallowed = gone.astype(out.dtype) @ (exponents != 0).astype(out.dtype).T
            if (gone.any(axis=0) & (exponents < 0).any(axis=0)).any():
                raise ValueError("an infinite point has no negative power.")
            terms = np.where(swallowed > 0, zero, terms)
        out[first : first + rows] = pick(terms, axis=1)
    return out


def convolve(short: np.ndarray, long: np.ndarray, kind: str) -> np.ndarray:
    """One pass over the long sequence for each number of the short one."""
    better, dtype = _better(kind), np.result_type(short, long)
    out = np.empty(len(short) + len(long) - 1, dtype)
    out[: len(long)] = short[0] + long
    for i in range(1, len(short)):
        shifted = short[i] + long
        out[i + len(long) - 1] = shifted[-1]
        inside = out[i : i + len(long) - 1]
        better(inside, shifted[:-1], out=inside)
    return out


def _zero(kind: str) -> float:
    return -math.inf if kind == "max" else math.inf


def _better(kind: str) -> np.ufunc:
    return np.maximum if kind == "max" else np.minimum
