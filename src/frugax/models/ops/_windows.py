"""Ops for convolution and pooling of channels-last data: (batch, *space, channels).

Each op exists for one and for two axes of space, declared by one function over their
number. Kernels are (*window, in / groups, out). Strides, dilations and paddings are one
number for all axes of space, or one for each; see `pads` for "same" and "valid".
"""

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Any

from jaxtyping import Shaped

from ._settings import Padding, Sizes, padding_pairs, per_axis
from ._table import op

Pads = tuple[tuple[int, int], ...]

Images = Shaped[Any, "batch *space channels"]
Pooled = Shaped[Any, "*batch_and_space channels"]  # the batch may be left out

# --- convolutions -----------------------------------------------------------------


def _declare_convolutions(axes: int) -> None:
    """Add `conv1d` and `conv1d_transpose`, or their 2-D forms, to the table."""

    @op(promote="float", name=f"conv{axes}d")
    def convolution(
        xp: Any,
        input: Images,
        weight: Shaped[Any, "*window in_per_group out"],
        bias: Shaped[Any, " out"] | None = None,
        *,
        stride: Sizes = 1,
        padding: Padding = "same",
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Shaped[Any, "batch *new_space out"]:
        """Convolve channels-last data; the channels are split into `groups`."""
        name = f"conv{axes}d"
        *window, read, out = weight.shape
        _check_channels(name, axes, input, weight, read * groups, out, groups)
        stride = per_axis(f"{name}: stride", stride, axes=axes)
        dilation = per_axis(f"{name}: dilation", dilation, axes=axes)
        widths = pads(name, padding, input.shape[1:-1], window, stride, dilation)
        # By the namespace, because XLA:CPU is slow at the gradients of its own
        # convolution inside loops (docs/maintainers.md).
        result = xp.convolution(input, weight, stride, widths, dilation, groups)
        return _add_bias(xp, result, bias)

    @op(promote="float", name=f"conv{axes}d_transpose")
    def conv_transpose(
        xp: Any,
        input: Images,
        weight: Shaped[Any, "*window out_per_group channels"],
        bias: Shaped[Any, " out"] | None = None,
        *,
        stride: Sizes = 1,
        padding: Padding = "same",
        dilation: Sizes = 1,
        groups: int = 1,
        output_padding: Sizes = 0,
    ) -> Shaped[Any, "batch *new_space out"]:
        """The gradient of a convolution with respect to its data; it enlarges space.

        The weight is the kernel of that convolution. Padding "same" gives size * stride
        points, "valid" (size - 1) * stride + window; a number or pairs are cut off from
        that, and `output_padding` is added to the end again, as in torch.
        """
        name = f"conv{axes}d_transpose"
        # The kernel of the convolution that is transposed: its last axis is read here.
        *window, _, read = weight.shape
        _check_channels(name, axes, input, weight, read, read, groups)
        stride = per_axis(f"{name}: stride", stride, axes=axes)
        dilation = per_axis(f"{name}: dilation", dilation, axes=axes)
        extra = per_axis(f"{name}: output_padding", output_padding, axes=axes, least=0)
        reach = _reach(window, dilation)
        if padding == "same":
            # Where the stride is larger than the window, the surplus is negative: then
            # zeros are added at the end instead of cutting off.
            surplus = [r - s for r, s in zip(reach, stride, strict=True)]
            crops = [(max(s, 0) // 2, s - max(s, 0) // 2) for s in surplus]
        else:
            crops = pads(name, padding, reach, window, stride, dilation)
        # A stride maps several sizes to one; `output_padding` says which of them to
        # give back.
        ends = [(low, high - e) for (low, high), e in zip(crops, extra, strict=True)]
        result = xp.convolution_transpose(input, weight, stride, ends, dilation, groups)
        return _add_bias(xp, result, bias)


@op()
def upsample(
    xp: Any, input: Images, *, scale: Annotated[Sizes, per_axis] = 2
) -> Shaped[Any, "batch *new_space channels"]:
    """Repeat each point of space `scale` times along each axis (nearest neighbour)."""
    # With a convolution behind it this avoids the checkerboard of a transposed one
    # (Odena, Dumoulin & Olah 2016, Distill).
    batch, *space, channels = input.shape
    times = per_axis("upsample: scale", scale, axes=len(space))
    # (size, 1) -> (size, times) -> size * times, for all axes at once.
    split = [batch, *(n for size in space for n in (size, 1)), channels]
    pairs = zip(space, times, strict=True)
    wide = [batch, *(n for pair in pairs for n in pair), channels]
    larger = [size * by for size, by in zip(space, times, strict=True)]
    # Broadcast and not indexed: the gradient is a sum and not a scatter.
    repeated = xp.broadcast_to(xp.reshape(input, tuple(split)), tuple(wide))
    return xp.reshape(repeated, (batch, *larger, channels))


def _check_channels(
    op: str, axes: int, input: Any, weight: Any, read: Any, shared: int, groups: int
) -> None:
    """Check that data and weight fit; `shared` is the number that groups divide."""
    if len(input.shape) != axes + 2 or len(weight.shape) != axes + 2:
        raise ValueError(
            f"{op}: the input must be (batch, *space, channels) with {axes} axes of "
            f"space, the weight (*window, channels, channels); not "
            f"{tuple(input.shape)} and {tuple(weight.shape)}."
        )
    if groups < 1 or input.shape[-1] != read or shared % groups:
        raise ValueError(
            f"{op}: an input of {input.shape[-1]} channels and a weight of "
            f"{tuple(weight.shape)} do not go together with {groups} groups."
        )


def _add_bias(xp: Any, result: Any, bias: Any) -> Any:
    if bias is None:
        return result
    return result + xp.reshape(bias, (1,) * (len(result.shape) - 1) + (-1,))


# --- pools ------------------------------------------------------------------------


def _declare_pools(axes: int) -> None:
    """Add `max_pool1d` and `avg_pool1d`, or their 2-D forms, to the table."""
    sizes = functools.partial(per_axis, axes=axes)
    padded = functools.partial(padding_pairs, axes=axes)

    @op(promote="float", name=f"max_pool{axes}d")
    def max_pool(
        xp: Any,
        input: Pooled,
        *,
        window: Annotated[Sizes, sizes],
        stride: Annotated[Sizes, sizes] | None = None,
        padding: Annotated[Padding, padded] = "valid",
    ) -> Shaped[Any, "*batch_and_new_space channels"]:
        """The largest number of each window; the stride is the window by default.

        Of equal numbers the first gets the gradient. Padding is never the largest.
        """
        if len(input.shape) == axes + 1:  # one example without a batch
            batch = xp.expand_dims(input, 0)
            found = max_pool(xp, batch, window=window, stride=stride, padding=padding)
            return found[0]
        name = f"max_pool{axes}d"
        windows = _window_sizes(name, axes, input, window, stride, padding)
        return xp.max_pool(input, *windows)

    @op(promote="float", name=f"avg_pool{axes}d")
    def avg_pool(
        xp: Any,
        input: Pooled,
        *,
        window: Annotated[Sizes, sizes],
        stride: Annotated[Sizes, sizes] | None = None,
        padding: Annotated[Padding, padded] = "valid",
        count_padding: bool = False,
    ) -> Shaped[Any, "*batch_and_new_space channels"]:
        """The mean of each window; the stride is the window by default.

        `count_padding` says whether padding counts as zeros, as in torch by default, or
        not at all: then the mean of a constant image is constant.
        """
        name = f"avg_pool{axes}d"
        if len(input.shape) == axes + 1:
            found = avg_pool(
                xp,
                xp.expand_dims(input, 0),
                window=window,
                stride=stride,
                padding=padding,
                count_padding=count_padding,
            )
            return found[0]
        window, stride, widths = _window_sizes(
            name, axes, input, window, stride, padding
        )
        x = xp.widened(input)  # sums of float16 and bfloat16 are taken in float32
        total = xp.sum_pool(x, window, stride, widths)
        if count_padding or all(pair == (0, 0) for pair in widths):
            return xp.cast_like(total / math.prod(window), input)
        # How much data each window holds at the edges, equal for all examples and
        # channels.
        ones = xp.cast_like(xp.ones((1, *input.shape[1:-1], 1), like=input), x)
        counts = xp.sum_pool(ones, window, stride, widths)
        return xp.cast_like(total / counts, input)


for _axes in (1, 2):
    _declare_convolutions(_axes)
    _declare_pools(_axes)


@op(promote="float")
def global_avg_pool(
    xp: Any, input: Images, *, keepdims: bool = False
) -> Shaped[Any, "batch ..."]:
    """The mean over space: (batch, *space, channels) to (batch, channels)."""
    axes = tuple(range(1, len(input.shape) - 1))
    # The sum over an image can pass 65504, the largest float16, where the mean does
    # not.
    mean = xp.mean(xp.widened(input), axis=axes, keepdims=keepdims)
    return xp.cast_like(mean, input)


@op()
def global_max_pool(
    xp: Any, input: Images, *, keepdims: bool = False
) -> Shaped[Any, "batch ..."]:
    """The maximum over space: (batch, *space, channels) to (batch, channels)."""
    axes = tuple(range(1, len(input.shape) - 1))
    return xp.max(input, axis=axes, keepdims=keepdims)


def _window_sizes(
    op: str,
    axes: int,
    input: Any,
    window: Sizes,
    stride: Sizes | None,
    padding: Padding,
) -> tuple[tuple[int, ...], tuple[int, ...], Pads]:
    """The window, stride and padding of a pool for each axis."""
    if len(input.shape) != axes + 2:
        raise ValueError(
            f"{op}: the input must be (batch, *space, channels) with {axes} axes of "
            f"space, not {tuple(input.shape)}."
        )
    window = per_axis(f"{op}: window", window, axes=axes)
    if stride is None:
        stride = window
    stride = per_axis(f"{op}: stride", stride, axes=axes)
    widths = pads(op, padding, input.shape[1:-1], window, stride, (1,) * axes)
    for size, (low, high) in zip(window, widths, strict=True):
        # The maximum of no number is -inf, and the mean of none NaN.
        if max(low, high) >= size:
            raise ValueError(
                f"{op}: padding {(low, high)} would make windows of {size} that hold "
                "nothing else; pad less."
            )
    return window, stride, widths


# --- windows ----------------------------------------------------------------------


def pads(
    op: str,
    padding: Padding,
    space: Sequence[Any],
    window: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Pads:
    """The zeros before and after each axis of space."""
    axes = len(space)
    reach = _reach(window, dilation)
    widths = padding_pairs(f"{op}: padding", padding, axes=axes)
    if widths is None:
        totals = [
            _same_padding(*sizes) for sizes in zip(space, reach, stride, strict=True)
        ]
        return tuple((n // 2, n - n // 2) for n in totals)
    for axis, size in enumerate(space):
        # A symbolic size cannot be compared.
        if isinstance(size, int) and size + sum(widths[axis]) < reach[axis]:
            raise ValueError(
                f"{op}: a window of {reach[axis]} does not fit into axis {axis} of "
                f'space, {size} with padding {widths[axis]}; padding="same" makes it.'
            )
    return widths


def _reach(window: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The points from the first to the last of a dilated window."""
    return [step * (size - 1) + 1 for size, step in zip(window, dilation, strict=True)]


def _same_padding(size: Any, reach: int, stride: int) -> int:
    # With a stride of 1 the result does not depend on the size, which may be symbolic.
    if stride == 1:
        return reach - 1
    # The last window starts at (ceil(size / stride) - 1) * stride. It may end before
    # the data does, where the stride is longer than the window.
    return max((-(-size // stride) - 1) * stride + reach - size, 0)
