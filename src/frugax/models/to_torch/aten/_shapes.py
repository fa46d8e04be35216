"""Convert torch's reshapes, concatenations and padding for `from_torch`."""

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
    shape_of,
    slice_axis,
)


@register("view", "reshape", "_unsafe_view", "view_copy")
def _reshape(x: Any, shape: Any) -> Any:
    return op("reshape", shape=tuple(shape))(x)


@register("flatten.using_ints")
def _flatten(x: Any, start: int = 0, end: int = -1) -> Any:
    rank = rank_of(x)
    return op("flatten", start=start % rank, stop=end % rank + 1)(x)


@register("unflatten.int")
def _unflatten(x: Any, dim: int, sizes: Any) -> Any:
    return op("unflatten", sizes=tuple(sizes), axis=dim)(x)


@register("permute")
def _permute(x: Any, dims: Any) -> Any:
    return op("transpose", axes=tuple(d % len(dims) for d in dims))(x)


@register("transpose.int")
def _swap(x: Any, first: int, second: int) -> Any:
    return op("swapaxes", axis1=first, axis2=second)(x)


@register("t", "numpy_T")
def _t(x: Any) -> Any:
    return op("transpose")(x)


@register("unsqueeze")
def _unsqueeze(x: Any, dim: int) -> Any:
    return op("expand_dims", axis=dim)(x)


@register("squeeze.dim", "squeeze.dims", "squeeze")
def _squeeze(x: Any, dims: Any = None) -> Any:
    shape = shape_of(x)
    dims = range(len(shape)) if dims is None else np.atleast_1d(dims).tolist()
    axes = tuple(d % len(shape) for d in dims if shape[d] == 1)
    return op("squeeze", axis=axes)(x) if axes else x


@register("expand")
def _expand(x: Any, sizes: Any, **_: Any) -> Any:
    return op("broadcast_to", shape=tuple(sizes))(x)


@register("repeat")
def _repeat(x: Any, times: Any) -> Any:
    return op("tile", reps=tuple(times))(x)


@register("repeat_interleave.self_int")
def _repeat_interleave(x: Any, times: int, dim: int | None = None) -> Any:
    return op("repeat", repeats=times, axis=dim)(x)


@register("cat", "concat")
def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    return op("concat", axis=dim)(*tensors)


@register("stack")
def _stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    return op("stack", axis=dim)(*tensors)


@register("roll")
def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    axis = tuple(dims) or None
    return op("roll", shift=tuple(shifts) if axis else shifts[0], axis=axis)(x)


@register("flip")
def _flip(x: Any, dims: Any) -> Any:
    return op("flip", axis=tuple(dims))(x)


@register("pad", "constant_pad_nd")
def _pad(x: Any, widths: Any, mode: Any = "constant", value: Any = 0) -> Any:
    if not isinstance(mode, str):
        mode, value = "constant", mode
    pairs = list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (rank_of(x) - len(pairs)) + pairs
    if any(w < 0 for pair in pairs for w in pair):
        for axis, (low, high) in enumerate(pairs):
            length = length_of(x, axis)
            if low < 0 or high < 0:
                x = slice_axis(x, axis, max(-low, 0), length + min(high, 0))
        pairs = [(max(low, 0), max(high, 0)) for low, high in pairs]
    ours = {"replicate": "edge"}.get(mode, mode)
    return op("pad", widths=tuple(pairs), mode=ours, value=value or 0)(x)


@register("tril", "triu")
def _tril(x: Any, k: int = 0) -> Any:
    return op("tril", k=k)(x)


CONVERSIONS[aten.triu.default] = lambda x, k=0: op("triu", k=k)(x)


@register("movedim.int", "moveaxis.int")
def _movedim(x: Any, source: int, destination: int) -> Any:
    return op("moveaxis", source=source, destination=destination)(x)
