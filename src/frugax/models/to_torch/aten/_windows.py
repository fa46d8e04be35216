"""Convert torch's convolutions, pooling and resizing for `from_torch`.

They move the channels to the end and back, which XLA makes part of its layouts.
"""

# ruff: noqa: FBT002 - the signatures are torch's own

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from frugax.models.graph import op

from ._conversions import (
    CONVERSIONS,
    aten,
    keep_shape,
    length_of,
    register,
    shape_of,
    slice_axis,
)


def _channels_last(x: Any, axes: int) -> Any:
    return op("moveaxis", source=-axes - 1, destination=-1)(x)


def _channels_first(x: Any, axes: int) -> Any:
    return op("moveaxis", source=-1, destination=-axes - 1)(x)


def _pairs(padding: Any, axes: int) -> Any:
    if isinstance(padding, str):
        return padding
    padding = list(padding) * (axes if len(padding) == 1 else 1)
    return tuple((p, p) for p in padding)


def _sizes(value: Any, axes: int) -> tuple[int, ...]:
    value = value if isinstance(value, (list, tuple)) else [value]
    return tuple(value) * (axes if len(value) == 1 else 1)


def _convolution(axes: int) -> Callable[..., Any]:
    def convert(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,),
        padding: Any = (0,),
        dilation: Any = (1,),
        groups: int = 1,
    ) -> Any:
        layer = op(
            f"conv{axes}d",
            stride=_sizes(stride, axes),
            padding=_pairs(padding, axes),
            dilation=_sizes(dilation, axes),
            groups=groups,
        )
        # torch's kernel is (out, in / groups, *window).
        kernel = op("transpose", axes=(*range(2, 2 + axes), 1, 0))(weight)
        return _channels_first(layer(_channels_last(x, axes), kernel, bias), axes)

    return convert


def _transposed(axes: int) -> Callable[..., Any]:
    def convert(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,),
        padding: Any = (0,),
        output_padding: Any = (0,),
        groups: int = 1,
        dilation: Any = (1,),
    ) -> Any:
        layer = op(
            f"conv{axes}d_transpose",
            stride=_sizes(stride, axes),
            padding=_pairs(padding, axes),
            dilation=_sizes(dilation, axes),
            groups=groups,
            output_padding=_sizes(output_padding, axes),
        )
        # torch's is (in, out / groups, *window), ours (*window, out / groups, in).
        kernel = op("transpose", axes=(*range(2, 2 + axes), 1, 0))(weight)
        return _channels_first(layer(_channels_last(x, axes), kernel, bias), axes)

    return convert


def _with_ceil(
    x: Any, axes: int, window: Any, stride: Any, padding: Any, ceil_mode: Any
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...], bool]:
    """Windows, strides and padding by axis; whether ceil_mode adds some at the end."""
    windows, strides = _sizes(window, axes), _sizes(stride or window, axes)
    pairs, is_longer = [], False
    for i, pad in enumerate(_sizes(padding, axes)):
        length, extra = shape_of(x)[i - axes], 0
        if ceil_mode:
            steps = -(-(length + 2 * pad - windows[i]) // strides[i])
            # torch leaves out a window that would begin behind the input.
            if steps * strides[i] >= length + pad:
                steps -= 1
            extra = max(steps * strides[i] + windows[i] - length - 2 * pad, 0)
        is_longer = is_longer or extra > 0
        pairs.append((pad, pad + extra))
    return windows, strides, tuple(pairs), is_longer


def _max_pool(axes: int) -> Callable[..., Any]:
    def convert(
        x: Any,
        window: Any,
        stride: Any = (),
        padding: Any = (0,),
        dilation: Any = (1,),
        ceil_mode: object = False,
    ) -> Any:
        if set(_sizes(dilation, axes)) != {1}:
            raise NotImplementedError("a pool with a dilation")
        windows, strides, pairs, _ = _with_ceil(
            x, axes, window, stride, padding, ceil_mode
        )
        layer = op(f"max_pool{axes}d", window=windows, stride=strides, padding=pairs)
        return _channels_first(layer(_channels_last(x, axes)), axes)

    return convert


def _avg_pool(axes: int) -> Callable[..., Any]:
    def convert(
        x: Any,
        window: Any,
        stride: Any = (),
        padding: Any = (0,),
        ceil_mode: object = False,
        count_include_pad: object = True,
        divisor: Any = None,
        *_: Any,
    ) -> Any:
        windows, strides, pairs, is_longer = _with_ceil(
            x, axes, window, stride, padding, ceil_mode
        )
        counts = bool(count_include_pad) and any(_sizes(padding, axes))
        # torch counts the padding, but not what ceil_mode adds to it.
        if divisor is not None or (counts and is_longer):
            raise NotImplementedError("an average with a divisor of its own")
        layer = op(
            f"avg_pool{axes}d",
            window=windows,
            stride=strides,
            padding=pairs,
            count_padding=counts,
        )
        return _channels_first(layer(_channels_last(x, axes)), axes)

    return convert


def _adaptive(axes: int, kind: str) -> Callable[..., Any]:
    def convert(x: Any, sizes: Any) -> Any:
        sizes = _sizes(sizes, axes)
        # One axis after the other; each piece is a slice, as lengths need not divide.
        for i, size in enumerate(sizes):
            axis = i - axes
            length = length_of(x, axis)
            if size in (None, length):
                continue
            parts = []
            for n in range(size):
                low, high = n * length // size, -(-(n + 1) * length // size)
                piece = slice_axis(x, axis, low, high)
                parts.append(op(kind, axis=axis, keepdims=True)(piece))
            whole = parts[0] if len(parts) == 1 else op("concat", axis=axis)(*parts)
            x = keep_shape(whole, x, axis, size)
        # The maximum comes with its places, which nothing but unpooling reads.
        return x if kind == "mean" else (x, None)

    return convert


for _axes in (1, 2):
    CONVERSIONS[getattr(aten, f"conv{_axes}d").default] = _convolution(_axes)
    CONVERSIONS[getattr(aten, f"conv{_axes}d").padding] = _convolution(_axes)
    _name = ("conv_transpose1d", "conv_transpose2d")[_axes - 1]
    _overload = ("default", "input")[_axes - 1]
    CONVERSIONS[getattr(getattr(aten, _name), _overload)] = _transposed(_axes)
    CONVERSIONS[getattr(aten, f"max_pool{_axes}d").default] = _max_pool(_axes)
    CONVERSIONS[getattr(aten, f"avg_pool{_axes}d").default] = _avg_pool(_axes)
    CONVERSIONS[getattr(aten, f"adaptive_avg_pool{_axes}d").default] = _adaptive(
        _axes, "mean"
    )
    CONVERSIONS[getattr(aten, f"adaptive_max_pool{_axes}d").default] = _adaptive(
        _axes, "max"
    )


@register("pixel_shuffle")
def _pixel_shuffle(x: Any, factor: int) -> Any:
    *batch, channels, height, width = shape_of(x)
    c = channels // factor**2
    x = op("reshape", shape=(*batch, c, factor, factor, height, width))(x)
    n = len(batch)
    x = op("transpose", axes=(*range(n), n, n + 3, n + 1, n + 4, n + 2))(x)
    return op("reshape", shape=(*batch, c, height * factor, width * factor))(x)


@register("upsample_nearest2d.vec", "upsample_nearest2d")
def _upsample_nearest(x: Any, sizes: Any, *_: Any) -> Any:
    for axis, out in zip((-2, -1), _out_sizes(x, sizes, _), strict=True):
        length = length_of(x, axis)
        index = (np.arange(out) * length // out).astype(np.int32)
        x = keep_shape(op("take", axis=axis)(x, index), x, axis, out)
    return x


@register("upsample_bilinear2d.vec", "upsample_bilinear2d")
def _upsample_bilinear(x: Any, sizes: Any, align: Any, *rest: Any) -> Any:
    for axis, out in zip((-2, -1), _out_sizes(x, sizes, rest), strict=True):
        length = length_of(x, axis)
        at = (np.arange(out) + 0.5) * length / out - 0.5
        if align:
            at = np.arange(out) * (length - 1) / max(out - 1, 1)
        at = np.clip(at, 0, length - 1)
        low = np.floor(at).astype(np.int32)
        share = (at - low).astype(np.float32)
        matrix = np.zeros((length, out), np.float32)
        matrix[low, np.arange(out)] += 1 - share
        matrix[np.minimum(low + 1, length - 1), np.arange(out)] += share
        moved = op("matmul")(op("moveaxis", source=axis, destination=-1)(x), matrix)
        x = keep_shape(op("moveaxis", source=-1, destination=axis)(moved), x, axis, out)
    return x


def _out_sizes(x: Any, sizes: Any, rest: Sequence[Any]) -> list[int]:
    if sizes is not None:
        return list(sizes)
    scales = next(r for r in rest if isinstance(r, (list, tuple)))
    return [int(length_of(x, a) * s) for a, s in zip((-2, -1), scales, strict=True)]


@register("pixel_unshuffle")
def _pixel_unshuffle(x: Any, factor: int) -> Any:
    *batch, channels, height, width = shape_of(x)
    small = (height // factor, factor, width // factor, factor)
    x = op("reshape", shape=(*batch, channels, small[0], factor, small[2], factor))(x)
    n = len(batch)
    x = op("transpose", axes=(*range(n), n, n + 2, n + 4, n + 1, n + 3))(x)
    return op("reshape", shape=(*batch, channels * factor**2, small[0], small[2]))(x)


@register("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(x: Any, groups: int) -> Any:
    shape = shape_of(x)
    split = op("reshape", shape=(shape[0], groups, -1, *shape[2:]))(x)
    return op("reshape", shape=shape)(op("swapaxes", axis1=1, axis2=2)(split))
