"""Convert torch's slices, gathers and other indexing for `from_torch`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from frugax.models.graph import op

from ._conversions import (
    CONVERSIONS,
    aten,
    length_of,
    rank_of,
    register,
    select,
    shape_of,
    slice_axis,
)


@register("slice.Tensor")
def _slice_tensor(
    x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    end = None if end is not None and end > 2**31 else end
    return slice_axis(x, dim, start, end, step)


@register("unbind.int")
def _unbind(x: Any, dim: int = 0) -> Any:
    return [select(x, dim, i) for i in range(length_of(x, dim))]


@register("split.Tensor", "chunk", "split_with_sizes", "split.sizes")
def _split(x: Any, size: Any, dim: int = 0) -> Any:
    length = length_of(x, dim)
    sizes = size if isinstance(size, list) else [size] * (length // size)
    if sum(sizes) < length:
        sizes = [*sizes, length - sum(sizes)]
    ends = np.cumsum(sizes).tolist()
    return [slice_axis(x, dim, e - s, e) for s, e in zip(sizes, ends, strict=True)]


@register("index_select")
def _index_select(x: Any, dim: int, index: Any) -> Any:
    return op("take", axis=dim)(x, index)


@register("gather")
def _gather(x: Any, dim: int, index: Any) -> Any:
    return op("take_along_axis", axis=dim)(x, index)


@register("index.Tensor")
def _index(x: Any, indices: Sequence[Any]) -> Any:
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) == 1:
        return op("take", axis=used[0])(x, indices[used[0]])
    if used != list(range(used[0], used[-1] + 1)) or used[0] != 0:
        raise NotImplementedError("an index of several separate axes")
    # Several arrays in front: one index into the flattened axes.
    lengths = shape_of(x)[: len(used)]
    flat: Any = indices[0]
    for index, length in zip(indices[1:], lengths[1:], strict=True):
        flat = op("add")(op("multiply")(flat, length), index)
    return op("take", axis=0)(op("flatten", start=0, stop=len(used))(x), flat)


CONVERSIONS[aten.chunk.default] = lambda x, count, dim=0: _split(
    x, -(-length_of(x, dim) // count), dim
)


@register("narrow")
def _narrow(x: Any, dim: int, start: int, length: int) -> Any:
    return slice_axis(x, dim, start, start + length)


@register("slice_scatter")
def _slice_scatter(
    x: Any, new: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    if step != 1:
        raise NotImplementedError("a write to every n-th entry")
    dim = dim % rank_of(x)
    places = range(length_of(x, dim))[slice(start, end)]
    if not places:
        return x
    parts = [slice_axis(x, dim, 0, places[0]), new]
    return op("concat", axis=dim)(*parts, slice_axis(x, dim, places[-1] + 1, None))


@register("copy")
def _copy(x: Any, new: Any, *_: Any) -> Any:
    return op("broadcast_to", shape=shape_of(x))(new)


@register("select_scatter")
def _select_scatter(x: Any, new: Any, dim: int, index: int) -> Any:
    index = range(length_of(x, dim))[index]
    row = op("expand_dims", axis=dim % rank_of(x))(new)
    return _slice_scatter(x, row, dim, index, index + 1)


@register("unfold")
def _unfold(x: Any, dim: int, size: int, step: int) -> Any:
    last = length_of(x, dim) - size
    pieces = [slice_axis(x, dim, i, last + i + 1, step) for i in range(size)]
    return op("stack", axis=-1)(*pieces)
