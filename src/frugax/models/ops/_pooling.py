"""Pools of data with channels last: (batch, *space, channels).

A stride that is not given is the window's size. Paddings: `_windows.pads`.
"""

import math
from collections.abc import Sequence
from typing import Any

from ._table import op
from ._windows import Padding, pads, per_axis


@op(promote="float")
def max_pool1d(
    xp: Any,
    input: Any,
    *,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = "valid",
) -> Any:
    """The largest of each window of (batch, time, channels)."""
    sizes = _sizes("max_pool1d", input, window, stride, padding)
    return xp.max_pool(input, *sizes)


@op(promote="float")
def max_pool2d(
    xp: Any,
    input: Any,
    *,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = "valid",
) -> Any:
    """The largest of each window of (batch, height, width, channels).

    Of equal numbers the first gets the gradient. What is padded is never the largest.
    """
    sizes = _sizes("max_pool2d", input, window, stride, padding)
    return xp.max_pool(input, *sizes)


@op(promote="float")
def avg_pool1d(
    xp: Any,
    input: Any,
    *,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    count_padding: bool = False,
) -> Any:
    """The mean of each window of (batch, time, channels); see `avg_pool2d`."""
    sizes = _sizes("avg_pool1d", input, window, stride, padding)
    return _mean(xp, input, sizes, count_padding=count_padding)


@op(promote="float")
def avg_pool2d(
    xp: Any,
    input: Any,
    *,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    count_padding: bool = False,
) -> Any:
    """The mean of each window of (batch, height, width, channels).

    Whether what is padded counts as zeros, or not at all: `count_padding`.
    """
    sizes = _sizes("avg_pool2d", input, window, stride, padding)
    return _mean(xp, input, sizes, count_padding=count_padding)


@op(promote="float")
def global_avg_pool(xp: Any, input: Any, *, keepdims: bool = False) -> Any:
    """The mean over space: (batch, *space, channels) to (batch, channels)."""
    axes = tuple(range(1, len(input.shape) - 1))
    mean = xp.mean(xp.widened(input), axis=axes, keepdims=keepdims)
    return xp.cast_like(mean, input)


@op()
def global_max_pool(xp: Any, input: Any, *, keepdims: bool = False) -> Any:
    """The largest over space: (batch, *space, channels) to (batch, channels)."""
    axes = tuple(range(1, len(input.shape) - 1))
    return xp.max(input, axis=axes, keepdims=keepdims)


def _sizes(op: str, input: Any, window: Any, stride: Any, padding: Padding) -> Any:
    axes = int(op[-2])
    if len(input.shape) != axes + 2:
        raise ValueError(
            f"{op}: the input must be (batch, *space, channels) with {axes} axes of "
            f"space, not {tuple(input.shape)}."
        )
    window = per_axis(op, "window", window, axes)
    stride = per_axis(op, "stride", window if stride is None else stride, axes)
    space = input.shape[1:-1]
    given = pads(op, padding, space, window, stride, (1,) * axes)
    for size, (low, high) in zip(window, given, strict=True):
        if max(low, high) >= size:
            raise ValueError(
                f"{op}: padding {(low, high)} would make windows of {size} that hold "
                "nothing else; pad less."
            )
    return window, stride, given


def _mean(xp: Any, input: Any, sizes: Any, *, count_padding: bool) -> Any:
    window, stride, given = sizes
    x = xp.widened(input)
    out = xp.sum_pool(x, window, stride, given)
    if count_padding or all(pair == (0, 0) for pair in given):
        return xp.cast_like(out / math.prod(window), input)
    there = xp.cast_like(xp.ones((1, *input.shape[1:-1], 1), like=input), x)
    return xp.cast_like(out / xp.sum_pool(there, window, stride, given), input)
