"""The engine of NumPy arrays and torch tensors, the reference that defines all results.

Both libraries have the functions used here, under NumPy's names of arguments. Programs
are written for matrices; `_of_batches` loops over the axes before these.
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int, Num

# Bytes of the block that one pass works on: half of a typical L2 cache per core.
_BLOCK_BYTES = 1 << 18


def _library(a: Any) -> Any:
    """Return the module of an array's functions."""
    # A tensor exists only if the program has imported torch.
    return np if isinstance(a, np.ndarray) else sys.modules["torch"]


def _without_gradient(a: Any) -> Any:
    """Detach a tensor: autograd would store all terms for its backward pass."""
    return a if isinstance(a, np.ndarray) else a.detach()


def _of_batches(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of matrices and a semiring one of batches, which broadcast."""

    @functools.wraps(function)
    def apply(*given: Any) -> Any:
        *arrays, kind = given
        if all(a.ndim == 2 for a in arrays):
            return function(*arrays, kind)
        library = _library(arrays[0])
        batch = library.broadcast_shapes(*(a.shape[:-2] for a in arrays))
        count = math.prod(batch)
        flat = [
            library.broadcast_to(a, (*batch, *a.shape[-2:])).reshape(
                count, *a.shape[-2:]
            )
            for a in arrays
        ]
        # Zeros stand in for an empty batch, so that the shape is known.
        rows = list(zip(*flat, strict=True)) or [
            [library.zeros_like(a.sum(0), dtype=a.dtype) for a in flat]
        ]
        results = [function(*matrices, kind) for matrices in rows]
        several = isinstance(results[0], tuple)
        parts = [
            library.stack(part)[:count].reshape(*batch, *part[0].shape)
            for part in (zip(*results, strict=True) if several else [results])
        ]
        return tuple(parts) if several else parts[0]

    return apply


def has_infinity(a: Num[Any, "..."]) -> bool:
    """Whether the dtype has infinities."""
    return a.dtype.kind == "f" if isinstance(a, np.ndarray) else a.is_floating_point()


def contains(a: Num[Any, "..."], which: float) -> bool:
    """Whether the array contains this infinity; False under `torch.func.vmap`."""
    return has_infinity(a) and _is_true((a == which).any())


def contains_nan(a: Num[Any, "..."]) -> bool:
    """Whether the array contains NaN; False under `torch.func.vmap`."""
    return _is_true((a != a).any())


def _is_true(condition: Any, *, unknown: bool = False) -> bool:
    """Return whether a condition holds; `unknown` for values that are mapped over."""
    # As values that JAX traces, those that `vmap` maps over cannot be looked at.
    try:
        return bool(condition)
    except RuntimeError as e:
        if "vmap" in str(e) or ".item()" in str(e):
            return unknown
        raise


def identity(shape: tuple[int, ...], like: Num[Any, "..."], kind: str) -> Any:
    """Return 0 on the diagonal and the zero elsewhere."""
    library = _library(like)
    out = library.full(shape, _zero(kind), dtype=like.dtype, device=like.device)
    return library.where(_diagonal(like, shape[-1]), library.zeros_like(out), out)


@_of_batches
def matmul(a: Num[Any, "n k"], b: Num[Any, "k m"], kind: str) -> Num[Any, "n m"]:
    """Compute the product, one k at a time: all terms would need n * k * m numbers."""
    library, left, right = _library(a), _without_gradient(a), _without_gradient(b)
    dtype = library.result_type(a, b)
    if a.shape[1] == 0:
        shape = a.shape[0], b.shape[1]
        return library.full(shape, _zero(kind), dtype=dtype, device=a.device)
    blocks: list[Any] = []
    rows = _block_rows(a, b.shape[1] * dtype.itemsize)
    for first in range(0, max(1, a.shape[0]), rows):
        part = left[first : first + rows]
        best = part[:, :1] + right[0]
        for k in range(1, a.shape[1]):
            best = _update(kind, best, part[:, k, None] + right[k])
        blocks.append(best)
    out = library.concatenate(blocks)
    if library is np:
        return out
    from . import _torch

    if not _torch.needs_derivative(a, b):
        return out
    first_best = _first_terms(left, right, out).clamp(min=0)
    return _torch.follow_product(a, b, out, first_best, _zero(kind))


@_of_batches
def matmul_with_argument(
    a: Num[Any, "n k"], b: Num[Any, "k m"], kind: str
) -> tuple[Num[Any, "n m"], Int[Any, "n m"]]:
    """Compute the product and the first k of each optimum; -1 for no term."""
    out = matmul(a, b, kind)
    left, right, found = map(_without_gradient, (a, b, out))
    which = _first_terms(left, right, found)
    return out, _library(a).where(found == _zero(kind), -1, which)


def _first_terms(a: Any, b: Any, out: Any) -> Any:
    """Return the first k of `a[i, k] + b[k, j] == out[i, j]`; -1 for none, as for NaN.

    The same sum has the same bits again, so equality finds the optimal term.
    """
    library = _library(a)
    which = library.full_like(out, -1, dtype=library.int64)
    for k in range(a.shape[1] - 1, -1, -1):
        is_best = a[:, k, None] + b[k] == out
        if library is np:
            which[is_best] = k
        else:  # not in place: `vmap` may map over one of the matrices alone
            which = library.where(is_best, k, which)
    return which


def mark_missing(
    before: Int[Any, "*batch n n"], out: Num[Any, "*batch n n"], kind: str
) -> Int[Any, "*batch n n"]:
    """Write -1 where no edge leads to j: from j itself, and where no walk does."""
    missing = _diagonal(out, out.shape[-1]) | (_without_gradient(out) == _zero(kind))
    return _library(out).where(missing, -1, before)


def viterbi(
    scores: Num[Any, "batch steps states"],
    transitions: Num[Any, "states states"],
    kind: str,
) -> tuple[Int[Any, "batch steps"], Num[Any, " batch"]]:
    """Find the optimal sequence of states of each batch."""
    total = _cast(scores[:, 0], _library(scores).result_type(scores, transitions))
    before: list[Any] = []
    for t in range(1, scores.shape[1]):
        terms = total[:, :, None] + transitions
        before.append(_first_optimum(terms, kind))
        total = _take(terms, before[-1][:, None])[:, 0] + scores[:, t]
    path = [_first_optimum(total, kind)[:, None]]
    weight = _take(total, path[0])[:, 0]
    for came in reversed(before):
        path.append(_take(came, path[-1]))
    return _library(scores).concatenate(path[::-1], axis=1), weight


def _first_optimum(terms: Any, kind: str) -> Any:
    """Return the place of the first optimum along axis 1; NaN is the optimum."""
    if isinstance(terms, np.ndarray):
        return {"max": np.argmax, "min": np.argmin}[kind](terms, axis=1)
    # The `argmax` of torch need not give the first one of equal floats.
    best = _reduce(terms, kind, keepdims=True)
    return ((terms == best) | (terms != terms)).char().argmax(dim=1)


@_of_batches
def predecessors(d: Num[Any, "n n"], kind: str) -> Int[Any, "n n"]:
    """Return the vertex before j on the optimal walk from i; i itself for none."""
    library, n = _library(d), len(d)
    is_better = {"max": library.greater, "min": library.less}[kind]
    out = _with_empty_walks(_without_gradient(d), kind)
    start = library.arange(n, device=d.device)
    before = library.broadcast_to(start[:, None], (n, n))
    for k in range(n):
        through = out[:, k, None] + out[k]
        shorter = is_better(through, out)
        before = library.where(shorter, before[k], before)
        out = library.where(shorter, through, out)
    return before


@_of_batches
def closure(d: Num[Any, "n n"], kind: str) -> Num[Any, "n n"]:
    """Run the Floyd-Warshall algorithm; stop at the first improving cycle."""
    out = _with_empty_walks(_without_gradient(d), kind)
    for k in range(len(d)):
        # All walks through vertices before k are known here. So any cycle with k as its
        # highest vertex is found before its weight can diverge.
        if _is_true(out[k, k] != 0):
            raise ValueError(
                f"vertex {k} lies on a cycle of weight {out[k, k].item()}, which "
                "improves in every round: the optimal walk does not exist."
            )
        # Row and column k do not change in this step, because out[k, k] is 0.
        out = _update(kind, out, out[:, k, None] + out[k])
    if isinstance(d, np.ndarray):
        return out
    from . import _torch

    if not _torch.needs_derivative(d):
        return out
    return _torch.follow_closure(d, out, predecessors(d, kind), _zero(kind))


def _with_empty_walks(d: Any, kind: str) -> Any:
    """Add the empty walks, which cost 0, to the single steps."""
    library = _library(d)
    with_empty = _optimum(library, kind)(d, library.zeros_like(d))
    return library.where(_diagonal(d, len(d)), with_empty, d)


def polynomial(
    coefficients: Num[Any, " monomials"],
    exponents: Num[Any, "monomials variables"],
    points: Num[Any, "points variables"],
    kind: str,
) -> Num[Any, " points"]:
    """Evaluate the optimal monomial at each point, a block of points at a time."""
    library, zero = _library(points), _zero(kind)
    dtype = functools.reduce(
        library.promote_types, (coefficients.dtype, exponents.dtype, points.dtype)
    )
    coefficients, exponents, points = (
        _cast(a, dtype) for a in (coefficients, exponents, points)
    )
    is_zero = points == zero
    if _is_true((is_zero.any(0) & (exponents < 0).any(0)).any()):
        raise ValueError(
            "polynomial: a negative power of an infinite point is undefined."
        )
    used, has_zeros = (
        _cast(exponents != 0, dtype),
        _is_true(is_zero.any(), unknown=True),
    )
    blocks: list[Any] = []
    rows = _block_rows(points, len(coefficients) * dtype.itemsize)
    for first in range(0, max(1, len(points)), rows):
        part, zeros = points[first : first + rows], is_zero[first : first + rows]
        if has_zeros:
            # 0 * inf is NaN, but the zero to the power 0 is the one, else the zero.
            part = library.where(zeros, library.zeros_like(part), part)
        terms = part @ exponents.T + coefficients
        if has_zeros:
            has_zero_factor = _cast(zeros, dtype) @ used.T > 0
            terms = library.where(has_zero_factor, zero, terms)
        blocks.append(_reduce(terms, kind))
    return library.concatenate(blocks)


def convolve(
    short: Num[Any, " n"], long: Num[Any, " m"], kind: str
) -> Num[Any, " n+m-1"]:
    """Make one pass over the long sequence for each element of the short one."""
    library, m = _library(short), len(long)
    # Each place with the term of the first pass that reaches it: integers do not have
    # an infinity to start with.
    out = library.concatenate([short[0] + long, short[1:] + long[-1]])
    for i in range(1, len(short)):
        inside = out[i : i + m - 1]
        if library is not np:  # autograd keeps it, and it changes in later passes
            inside = inside.clone()
        out[i : i + m - 1] = _update(kind, inside, short[i] + long[:-1])
    return out


def _zero(kind: str) -> float:
    return {"max": -math.inf, "min": math.inf}[kind]


def _optimum(library: Any, kind: str) -> Callable[..., Any]:
    return {"max": library.maximum, "min": library.minimum}[kind]


def _update(kind: str, best: Any, new: Any) -> Any:
    """Return the optimum of each pair of numbers, in place where autograd is not."""
    if isinstance(best, np.ndarray):
        return _optimum(np, kind)(best, new, out=best)
    return _optimum(_library(best), kind)(best, new)


def _reduce(terms: Any, kind: str, *, keepdims: bool = False) -> Any:
    """Return the optimum along axis 1."""
    library = _library(terms)
    reduce = {"max": library.amax, "min": library.amin}[kind]
    return reduce(terms, axis=1, keepdims=keepdims)


def _take(a: Any, index: Any) -> Any:
    """Return the entries at some places along axis 1."""
    if isinstance(a, np.ndarray):
        return np.take_along_axis(a, index, axis=1)
    return a.gather(1, index)


def _cast(a: Any, dtype: Any) -> Any:
    return a.astype(dtype) if isinstance(a, np.ndarray) else a.to(dtype)


def _diagonal(like: Any, n: int) -> Any:
    library = _library(like)
    return library.eye(n, dtype=library.bool, device=like.device)


def _block_rows(like: Any, row_bytes: int) -> int:
    """Return how many rows are worked on at once."""
    # torch divides each operation among its threads, or runs it on a GPU: at once.
    if not isinstance(like, np.ndarray):
        return max(1, len(like))
    return max(1, _BLOCK_BYTES // max(1, row_bytes))
