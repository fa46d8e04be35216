"""ATen's sums, means, maxima, sorting and cumulated sums in JAX."""

# ruff: noqa: FBT001, FBT002 - the signatures are torch's own

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

from frugax.models.ops import is_floating, safe_sqrt

from ._table import FUNCTIONS, Array, aten, axes_of, in_float32, to_float


def _keep(x: Array, dim: Any) -> Any:
    """The axes for jnp; a tensor without axes has none to reduce."""
    return axes_of(dim, x.ndim) if x.ndim else ()


def _summed(xp: Any, x: Array, dtype: Any) -> Array:
    """`x` in the dtype of its sum: torch sums booleans and integers as int64."""
    if dtype is not None:
        return xp.cast(x, dtype)
    return x if is_floating(np.dtype(x.dtype)) else xp.cast(x, xp.int_dtype)


def _add_sum(name: str, function: Callable[..., Array]) -> None:
    def compute(
        xp: Any, x: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Array:
        return function(_summed(xp, x, dtype), _keep(x, dim), keepdims=keepdim)

    aten(name)(compute)


_add_sum("sum", jnp.sum)
_add_sum("nansum", jnp.nansum)
_add_sum("mean", jnp.mean)
_add_sum("prod", jnp.prod)


def _add_reduction(names: str, function: Callable[..., Array]) -> None:
    def compute(xp: Any, x: Array, dim: Any = None, keepdim: bool = False) -> Array:
        result = function(x, _keep(x, dim), keepdims=keepdim)
        # Bytes were torch's booleans once: `any` and `all` of them are bytes.
        return xp.cast(result, np.uint8) if x.dtype == np.uint8 else result

    aten(*names.split())(compute)


_add_reduction("amax max", jnp.max)
_add_reduction("amin min", jnp.min)
_add_reduction("any _is_any_true", jnp.any)
_add_reduction("all _is_all_true", jnp.all)


def _add_index(name: str, find: Callable[..., Array]) -> None:
    def compute(xp: Any, x: Array, dim: Any = None, keepdim: bool = False) -> Array:
        if x.ndim == 0:
            return jnp.zeros((), xp.int_dtype)
        return xp.cast(find(x, dim, keepdims=keepdim), xp.int_dtype)

    aten(name)(compute)


_add_index("argmax", jnp.argmax)
_add_index("argmin", jnp.argmin)


def _add_extremum(name: str, find: Callable[..., Array]) -> None:
    def compute(xp: Any, x: Array, dim: int, keepdim: bool = False) -> Any:
        if x.ndim == 0:
            return x, jnp.zeros((), xp.int_dtype)
        at = find(x, dim, keepdims=True)
        values = jnp.take_along_axis(x, at, dim)
        if not keepdim:
            at, values = jnp.squeeze(at, dim), jnp.squeeze(values, dim)
        return values, xp.cast(at, xp.int_dtype)

    aten(name)(compute)


_add_extremum("max.dim", jnp.argmax)
_add_extremum("min.dim", jnp.argmin)


# --- moments ----------------------------------------------------------------------


@in_float32
def _variance(xp: Any, x: Array, dim: Any, correction: Any, keepdim: bool) -> Array:
    axes = _keep(x, dim)
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    centred = x - jnp.mean(x, axes, keepdims=True)
    total = jnp.sum(jnp.real(centred * jnp.conj(centred)), axes, keepdims=keepdim)
    # 0 / 0 is NaN, as torch gives for one value.
    return total / jnp.maximum(count - correction, 0)


def _add_moments(name: str, finish: Callable[..., Any]) -> None:
    def compute(
        xp: Any,
        x: Array,
        dim: Any = None,
        *,
        correction: Any = None,
        keepdim: bool = False,
    ) -> Any:
        return finish(xp, x, dim, 1 if correction is None else correction, keepdim)

    aten(f"{name}.correction")(compute)


_add_moments("var", _variance)
_add_moments("std", lambda xp, *a: safe_sqrt(xp, _variance(xp, *a)))
_add_moments(
    "var_mean", lambda xp, x, dim, c, keep: (
        _variance(xp, x, dim, c, keep), FUNCTIONS["mean"](xp, x, dim, keep)
    )
)  # fmt: skip
_add_moments(
    "std_mean", lambda xp, x, dim, c, keep: (
        safe_sqrt(xp, _variance(xp, x, dim, c, keep)),
        FUNCTIONS["mean"](xp, x, dim, keep),
    )
)  # fmt: skip


@aten("logsumexp")
@in_float32
def _logsumexp(xp: Any, x: Array, dim: Any, keepdim: bool = False) -> Array:
    return logsumexp(to_float(xp, x), _keep(x, dim), keepdims=keepdim)


@aten("linalg_vector_norm", "norm")
@in_float32
def _vector_norm(
    xp: Any,
    x: Array,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Array:
    """The norm of the entries, whose gradient is 0 at 0, as torch's."""
    x = x if dtype is None else xp.cast(x, dtype)
    axes, ord = _keep(x, dim), 2 if ord is None else ord
    size = FUNCTIONS["abs"](xp, x)
    if ord in (float("inf"), float("-inf")):
        return (jnp.max if ord > 0 else jnp.min)(size, axes, keepdims=keepdim)
    if ord == 0:
        return jnp.sum((x != 0).astype(size.dtype), axes, keepdims=keepdim)
    if ord == 1:
        return jnp.sum(size, axes, keepdims=keepdim)
    if ord == 2:
        powers = lax.integer_pow(size, 2)
    else:  # of a 0 without a gradient, which may be infinite
        powers = jnp.where(
            size == 0,
            0.0**ord if ord > 0 else jnp.inf,
            jnp.where(size == 0, 1, size) ** ord,
        )
    total = jnp.sum(powers, axes, keepdims=keepdim)
    is_zero = total == 0
    root = jnp.where(is_zero, 1, total)
    root = jnp.sqrt(root) if ord == 2 else root ** (1 / ord)
    return jnp.where(is_zero, 0, root)


@aten("_cdist_forward")
def _distances(xp: Any, x1: Array, x2: Array, p: float, compute_mode: Any) -> Array:
    return _vector_norm(xp, x1[..., :, None, :] - x2[..., None, :, :], p, -1)


@aten("_pdist_forward")
def _pair_distances(xp: Any, x: Array, p: float = 2) -> Array:
    first, second = np.triu_indices(x.shape[0], 1)
    return _vector_norm(xp, x[first] - x[second], p, -1)


# --- order ------------------------------------------------------------------------


@aten("sort")
def _sort(xp: Any, x: Array, dim: int = -1, descending: bool = False) -> Any:
    if x.ndim == 0:
        return x, jnp.zeros((), xp.int_dtype)
    at = jnp.argsort(x, dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, at, dim), xp.cast(at, xp.int_dtype)


@aten("sort.stable")
def _sort_stable(
    xp: Any, x: Array, *, stable: Any = None, dim: int = -1, descending: bool = False
) -> Any:
    return _sort(xp, x, dim, descending)


@aten("topk")
def _topk(
    xp: Any, x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    at = _sort(xp, x, dim, largest)[1]
    if x.ndim == 0:
        return x, at
    at = lax.slice_in_dim(at, 0, k, axis=dim % x.ndim)
    return jnp.take_along_axis(x, at, dim), at


@aten("kthvalue")
def _kthvalue(xp: Any, x: Array, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    values, at = _sort(xp, x, dim)
    pick = lambda v: lax.index_in_dim(v, k - 1, dim % x.ndim, keepdims=keepdim)
    return pick(values), pick(at)


@aten("median.dim")
def _median_dim(xp: Any, x: Array, dim: int, keepdim: bool = False) -> Any:
    value, at = _kthvalue(xp, x, (x.shape[dim] + 1) // 2, dim, keepdim)
    if not is_floating(np.dtype(x.dtype)):
        return value, at
    # NaN, which is sorted last, if there is one.
    largest, there = FUNCTIONS["max.dim"](xp, x, dim, keepdim)
    is_nan = jnp.isnan(largest)
    return jnp.where(is_nan, largest, value), jnp.where(is_nan, there, at)


@aten("median")
def _median(xp: Any, x: Array) -> Array:
    return _median_dim(xp, x.reshape(-1), 0)[0]


@aten("searchsorted.Tensor")
def _searchsorted(
    xp: Any, sequence: Array, x: Array, *, right: bool = False, side: Any = None,
    out_int32: bool = False, sorter: Any = None,
) -> Array:  # fmt: skip
    if sorter is not None:
        raise NotImplementedError("a search with a sorter")
    side = side or ("right" if right else "left")
    search = lambda s, v: jnp.searchsorted(s, v, side=side, method="compare_all")
    flat, rows = sequence.reshape(-1, sequence.shape[-1]), x
    if sequence.ndim > 1:
        rows = jax.vmap(search)(flat, x.reshape(-1, x.shape[-1])).reshape(x.shape)
    else:
        rows = search(sequence, x)
    return xp.cast(rows, np.int32 if out_int32 else xp.int_dtype)


@aten("bucketize")
def _bucketize(
    xp: Any, x: Array, boundaries: Array, *, out_int32: bool = False,
    right: bool = False,
) -> Array:  # fmt: skip
    return _searchsorted(xp, boundaries, x, right=right, out_int32=out_int32)


@aten("histc")
def _histc(xp: Any, x: Array, bins: int = 100, min: Any = 0, max: Any = 0) -> Array:
    flat = x.reshape(-1)
    low, high = (x.min(), x.max()) if min == max else (min, max)
    same = low == high  # torch widens a range without width
    low, high = low - same, high + same
    at = jnp.floor((flat - low) * bins / (high - low)).clip(0, bins - 1)
    inside = (flat >= low) & (flat <= high)
    counts = jnp.zeros(bins, x.dtype)
    return counts.at[at.astype(np.int32)].add(inside.astype(x.dtype))


# --- cumulated --------------------------------------------------------------------


@aten("cumsum")
def _cumsum(xp: Any, x: Array, dim: int, *, dtype: Any = None) -> Array:
    return _cumulate(xp, jnp.cumsum, _summed(xp, x, dtype), dim)


@aten("cumprod")
def _cumprod(xp: Any, x: Array, dim: int, *, dtype: Any = None) -> Array:
    return _cumulate(xp, jnp.cumprod, _summed(xp, x, dtype), dim)


@aten("logcumsumexp")
def _logcumsumexp(xp: Any, x: Array, dim: int) -> Array:
    run = lambda x, dim: lax.cumlogsumexp(x, axis=dim % x.ndim)
    return _cumulate(xp, run, x, dim)


def _cumulate(xp: Any, function: Callable[..., Array], x: Array, dim: int) -> Array:
    if x.ndim == 0:
        return x
    # Running totals of 16 bits would stop to grow after a few hundred entries.
    return in_float32(lambda _, x: function(x, dim))(xp, x)


def _add_running_extremum(name: str, is_better: Callable[..., Array]) -> None:
    def compute(xp: Any, x: Array, dim: int) -> Any:
        if x.ndim == 0:
            return x, jnp.zeros((), xp.int_dtype)
        places = lax.broadcasted_iota(xp.int_dtype, x.shape, dim % x.ndim)

        def later(left: Any, right: Any) -> Any:
            take = is_better(right[0], left[0]) | jnp.isnan(right[0])
            return tuple(
                jnp.where(take, b, a) for a, b in zip(left, right, strict=True)
            )

        return lax.associative_scan(later, (x, places), axis=dim % x.ndim)

    aten(name)(compute)


_add_running_extremum("cummax", jnp.greater_equal)
_add_running_extremum("cummin", jnp.less_equal)
