"""ATen's reshapes, indexing, scattering and new tensors in JAX."""

# ruff: noqa: FBT001, FBT002 - the signatures are torch's own

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ._table import Array, as_array, aten, aten_table, axes_of, is_number, same_dtype

_END = 2**31 - 1  # torch writes the largest int64 where there is no end


# --- reordering -------------------------------------------------------------------


@aten("view", "reshape", "_unsafe_view", "view_copy", "_reshape_copy")
def _reshape(xp: Any, x: Array, shape: Any) -> Array:
    if not isinstance(shape, tuple):
        raise NotImplementedError("a view of the same bits as another dtype")
    return jnp.reshape(x, shape)


@aten("flatten")
def _flatten(xp: Any, x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    joined = math.prod(x.shape[start : end + 1])
    return x.reshape((*x.shape[:start], joined, *x.shape[end + 1 :]))


def _is_open(length: Any) -> bool:
    return isinstance(length, int) and length == -1


_MOVES: dict[str, Callable[..., Any]] = {
    "permute permute_copy": lambda x, dims: jnp.transpose(x, dims),
    "transpose transpose_copy swapaxes swapdims": lambda x, dim0, dim1: (
        jnp.swapaxes(x, dim0, dim1) if x.ndim else x
    ),
    "t t_copy mT": lambda x: jnp.swapaxes(x, -2, -1) if x.ndim >= 2 else x,
    "unsqueeze unsqueeze_copy": lambda x, dim: jnp.expand_dims(x, dim),
    "expand_as": lambda x, other: jnp.broadcast_to(x, other.shape),
    "flip": lambda x, dims: jnp.flip(x, dims),
    "tril": lambda x, diagonal=0: jnp.tril(x, diagonal),
    "triu": lambda x, diagonal=0: jnp.triu(x, diagonal),
    "diagonal diagonal_copy": lambda x, offset=0, dim1=0, dim2=1: jnp.diagonal(
        x, offset, dim1, dim2
    ),
    "index_select": lambda x, dim, index: jnp.take(x, index, dim),
}
aten_table(_MOVES)


@aten("squeeze", "squeeze_copy")
def _squeeze(xp: Any, x: Array, dim: Any = None) -> Array:
    axes = axes_of(dim, x.ndim) if dim != () else ()
    # A free length is not 1, or torch would have fixed it.
    axes = tuple(a for a in axes if x.ndim and _is_one(x.shape[a]))
    return jnp.squeeze(x, axes)


def _is_one(length: Any) -> bool:
    return isinstance(length, int) and length == 1


@aten("expand", "expand_copy")
def _expand(xp: Any, x: Array, size: tuple[Any, ...], *, implicit: Any = False) -> Any:
    new = len(size) - x.ndim
    shape = tuple(x.shape[i - new] if _is_open(n) else n for i, n in enumerate(size))
    return jnp.broadcast_to(x, shape)


@aten("broadcast_tensors")
def _broadcast_tensors(xp: Any, tensors: Sequence[Array]) -> Any:
    shape = jnp.broadcast_shapes(*(t.shape for t in tensors))
    return tuple(jnp.broadcast_to(t, shape) for t in tensors)


@aten("cat", "concat", "concatenate")
def _cat(xp: Any, tensors: Sequence[Array], dim: int = 0) -> Array:
    # torch leaves out the empty list that some programs start from.
    kept = [t for t in tensors if not (t.ndim == 1 and _is_empty(t.shape[0]))]
    kept = kept or list(tensors)
    return jnp.concatenate(_alike(xp, kept), dim)


def _is_empty(length: Any) -> bool:
    return isinstance(length, int) and length == 0


def _alike(xp: Any, tensors: Sequence[Array]) -> list[Array]:
    """Tensors of one dtype, without a change of their axes."""
    dtype = same_dtype(xp, *tensors)[0].dtype
    return [xp.cast(t, dtype) for t in tensors]


@aten("stack")
def _stack(xp: Any, tensors: Sequence[Array], dim: int = 0) -> Array:
    return jnp.stack(_alike(xp, tensors), dim)


@aten("roll")
def _roll(xp: Any, x: Array, shifts: Any, dims: Any = ()) -> Array:
    dims = dims if dims != () else None
    one = isinstance(shifts, tuple) and len(shifts) == 1 and dims is None
    return jnp.roll(x, shifts[0] if one else shifts, dims)


def _pairs(x: Array, pad: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Torch's padding, which begins with the last axis, by axis."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs


@aten("constant_pad_nd")
def _constant_pad(xp: Any, x: Array, pad: tuple[Any, ...], value: Any = 0) -> Array:
    filling = as_array(xp, value, np.dtype(x.dtype))
    return lax.pad(x, filling, [(*pair, 0) for pair in _pairs(x, pad)])


@aten("as_strided", "as_strided_copy")
def _as_strided(
    xp: Any,
    x: Array,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    storage_offset: int | None = None,
) -> Array:
    # `from_torch` refuses it for tensors that torch stores in another order.
    at = jnp.full((), storage_offset or 0, np.int32)
    for axis, step in enumerate(stride):
        at = at + step * lax.broadcasted_iota(np.int32, size, axis)
    return x.reshape(-1)[at]


@aten("unfold")
def _unfold(xp: Any, x: Array, dimension: int, size: int, step: int) -> Array:
    axis = dimension % x.ndim
    starts = jnp.arange((x.shape[axis] - size) // step + 1) * step
    windows = jnp.take(x, starts[:, None] + jnp.arange(size), axis)
    return jnp.moveaxis(windows, axis + 1, -1)


# --- slices -----------------------------------------------------------------------


def _slices(x: Array, dim: int, start: Any, end: Any, step: int) -> Any:
    """The index of a slice; torch clips its ends as Python does."""
    length = x.shape[dim]
    if isinstance(length, int):
        picked = slice(start, end, step)
    else:
        # Whether a free length is above the other bound is not known.
        is_open = end is None or (isinstance(end, int) and end >= _END)
        picked = slice(start, None if is_open else end, step)
    return (*[slice(None)] * (dim % x.ndim), picked)


@aten("slice", "slice_copy")
def _slice(
    xp: Any, x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    if step == 1 and not (isinstance(end, int) or end is None):
        # torch found this free length to be within that of the axis.
        start = 0 if start is None else start
        return jnp.take(x, jnp.arange(end - start) + start, dim)
    return x[_slices(x, dim, start, end, step)]


@aten("slice_scatter")
def _slice_scatter(
    xp: Any, x: Array, src: Array, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Array:  # fmt: skip
    return x.at[_slices(x, dim, start, end, step)].set(xp.cast(src, x.dtype))


@aten("select", "select_copy")
def _select(xp: Any, x: Array, dim: int, index: Any) -> Array:
    return x[(*[slice(None)] * (dim % x.ndim), index)]


@aten("select_scatter")
def _select_scatter(xp: Any, x: Array, src: Array, dim: int, index: Any) -> Array:
    return x.at[(*[slice(None)] * (dim % x.ndim), index)].set(xp.cast(src, x.dtype))


@aten("diagonal_scatter")
def _diagonal_scatter(
    xp: Any, x: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Array:
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    rows = jnp.arange(src.shape[-1]) + max(-offset, 0)
    columns = jnp.arange(src.shape[-1]) + max(offset, 0)
    return jnp.moveaxis(moved.at[..., rows, columns].set(src), (-2, -1), (dim1, dim2))


def _narrow(x: Array, dim: int, start: Any, length: Any) -> Array:
    return x[(*[slice(None)] * (dim % x.ndim), slice(start, start + length))]


@aten("unbind", "unbind_copy")
def _unbind(xp: Any, x: Array, dim: int = 0) -> Any:
    return tuple(_select(xp, x, dim, i) for i in range(x.shape[dim]))


@aten("split_with_sizes", "split_with_sizes_copy")
def _split(xp: Any, x: Array, split_sizes: Sequence[Any], dim: int = 0) -> Any:
    parts, start = [], 0
    for size in split_sizes:
        parts.append(_narrow(x, dim, start, size))
        start = start + size
    return tuple(parts)


# --- gathering --------------------------------------------------------------------


@aten("gather")
def _gather(
    xp: Any, x: Array, dim: int, index: Array, *, sparse_grad: bool = False
) -> Array:
    return x if x.ndim == 0 else x[_along(x, dim, index)]


def _along(x: Array, dim: int, index: Array) -> tuple[Array, ...]:
    """The index of one entry of `x` for each entry of `index`, along an axis."""
    places: list[Array] = [
        lax.broadcasted_iota(index.dtype, index.shape, axis) for axis in range(x.ndim)
    ]
    places[dim % x.ndim] = index
    return tuple(places)


def _full_index(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


@aten("index", "index.Tensor_hacked_twin")
def _index(xp: Any, x: Array, indices: Sequence[Any]) -> Array:
    if any(i is not None and i.dtype == bool for i in indices):
        raise NotImplementedError("an index by a mask, whose length depends on data")
    return x[_full_index(indices)]


@aten("index_put")
def _index_put(
    xp: Any, x: Array, indices: Sequence[Any], values: Array, accumulate: bool = False
) -> Array:
    values = xp.cast(values, x.dtype)
    given = [i for i, index in enumerate(indices) if index is not None]
    if any(indices[i].dtype == bool for i in given):
        if len(given) > 1 or accumulate:
            raise NotImplementedError("a write to a mask and other indices")
        return _write_by_mask(x, indices[given[0]], values, given[0])
    place = x.at[_full_index(indices)]
    return place.add(values) if accumulate else place.set(values)


@aten("put")
def _put(
    xp: Any, x: Array, index: Array, source: Array, accumulate: bool = False
) -> Array:
    where = index.reshape(-1)
    flat = _index_put(xp, x.reshape(-1), (where,), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def _write_by_mask(x: Array, mask: Array, values: Array, axis: int) -> Array:
    rest = x.ndim - axis - mask.ndim
    wide = mask.reshape(mask.shape + (1,) * rest)
    if values.ndim > rest:  # one row for each entry of the mask
        row = values.ndim - rest - 1
        if not _is_one(values.shape[row]):
            at = jnp.cumsum(mask.reshape(-1)).reshape(mask.shape) - 1
            values = jnp.take(values, jnp.maximum(at, 0), row)
        else:
            shape = (*values.shape[:row], *[1] * mask.ndim, *values.shape[row + 1 :])
            values = values.reshape(shape)
    return jnp.where(wide, values, x)


@aten("masked_scatter")
def _masked_scatter(xp: Any, x: Array, mask: Array, source: Array) -> Array:
    x, mask = jnp.broadcast_arrays(x, mask)
    at = jnp.cumsum(mask.reshape(-1)).reshape(mask.shape) - 1
    return jnp.where(mask, source.reshape(-1)[jnp.maximum(at, 0)], x)


# --- scattering -------------------------------------------------------------------


def _updates(xp: Any, x: Array, index: Array, src: Any) -> Array:
    """Return the values to write: the part of the source that the index covers."""
    if is_number(src) or src.ndim == 0:
        return jnp.broadcast_to(as_array(xp, src, x.dtype), index.shape)
    return xp.cast(src[tuple(slice(0, n) for n in index.shape)], x.dtype)


def _with_an_axis(function: Callable[..., Array]) -> Callable[..., Array]:
    """Let a function take tensors without axes, as if they had one of length 1."""

    @functools.wraps(function)
    def compute(xp: Any, x: Array, *args: Any, **named: Any) -> Array:
        if x.ndim:
            return function(xp, x, *args, **named)
        one = [a if is_number(a) or isinstance(a, str) else a.reshape(1) for a in args]
        return function(xp, x.reshape(1), *one, **named).reshape(())

    return compute


@aten("scatter")
@_with_an_axis
def _scatter(
    xp: Any, x: Array, dim: int, index: Array, src: Any = None, *, value: Any = None,
    reduce: str | None = None,
) -> Array:  # fmt: skip
    updates = _updates(xp, x, index, value if src is None else src)
    place = x.at[_along(x, dim, index)]
    if reduce == "add":
        return place.add(updates)
    return place.multiply(updates) if reduce == "multiply" else place.set(updates)


@aten("scatter_add")
@_with_an_axis
def _scatter_add(xp: Any, x: Array, dim: int, index: Array, src: Array) -> Array:
    return x.at[_along(x, dim, index)].add(_updates(xp, x, index, src))


@aten("scatter_reduce")
@_with_an_axis
def _scatter_reduce(
    xp: Any, x: Array, dim: int, index: Array, src: Array, reduce: str, *,
    include_self: bool = True,
) -> Array:  # fmt: skip
    at, updates = _along(x, dim, index), _updates(xp, x, index, src)
    kind = {"sum": "add", "mean": "add", "prod": "multiply", "amax": "max",
            "amin": "min"}[reduce]  # fmt: skip
    start = x
    if not include_self:
        least, most = _extremes(np.dtype(x.dtype))
        neutral = {"add": 0, "multiply": 1, "max": least, "min": most}[kind]
        start = x.at[at].set(jnp.asarray(neutral, x.dtype))
    result = getattr(start.at[at], kind)(updates)
    if reduce != "mean":
        return result
    count = jnp.full(x.shape, int(include_self), x.dtype).at[at].add(1)
    count = jnp.maximum(count, 1)
    return result / count if x.dtype.kind != "i" else result // count


def _extremes(dtype: np.dtype) -> tuple[Any, Any]:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf


def _rows(x: Array, dim: int, index: Array) -> Any:
    return x.at[(*[slice(None)] * (dim % x.ndim), index)]


@aten("index_add")
def _index_add(
    xp: Any, x: Array, dim: int, index: Array, source: Array, *, alpha: Any = 1
) -> Array:
    return _rows(x, dim, index).add(xp.cast(source * alpha, x.dtype))


@aten("copy")
def _copy(xp: Any, x: Array, src: Array, non_blocking: bool = False) -> Array:
    return jnp.broadcast_to(xp.cast(src, x.dtype), x.shape)


@aten("fill")
def _fill(xp: Any, x: Array, value: Any) -> Array:
    return jnp.broadcast_to(as_array(xp, value, x.dtype), x.shape)


# --- new tensors ------------------------------------------------------------------


@aten("arange")
def _arange(xp: Any, *bounds: Any, dtype: Any = None) -> Array:
    if dtype is None:
        is_float = any(isinstance(b, float) for b in bounds)
        dtype = np.dtype(xp.float_dtype if is_float else xp.int_dtype)
    start, end, step = 0, bounds[0], 1
    if len(bounds) > 1:
        start, end, step = *bounds[:2], (*bounds, 1)[2]
    # Of lengths that are not known yet JAX takes whole numbers only.
    whole = lambda b: int(b) if isinstance(b, float) and b == int(b) else b
    start, step = whole(start), whole(step)
    if isinstance(step, int) and step == 1 and not isinstance(start, float):
        return xp.cast(jnp.arange(end - start) + start, dtype)
    # From whole steps and not by adding up, as torch.
    count = -((start - end) // step)
    steps = jnp.arange(int(count) if isinstance(count, float) else count)
    return xp.cast(start + steps * step, dtype)


@aten("full")
def _full(xp: Any, size: Any, fill_value: Any, *, dtype: Any = None) -> Array:
    return jnp.broadcast_to(as_array(xp, fill_value, dtype), size)


@aten("full_like")
def _full_like(xp: Any, x: Array, fill_value: Any, *, dtype: Any = None) -> Array:
    return _full(xp, x.shape, fill_value, dtype=dtype or np.dtype(x.dtype))


@aten("empty", "empty_permuted", "empty_strided")
def _empty(xp: Any, size: Any, memory: Any = None, *, dtype: Any = None) -> Array:
    return _full(xp, size, 0, dtype=dtype or np.dtype(xp.float_dtype))
