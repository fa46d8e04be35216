"""Convolutions of data with channels last: (batch, *space, channels).

Kernels are (*window, in / groups, out). Strides, dilations and paddings are one number
for all axes of space or one for each; what "same" and "valid" are: `_windows.pads`.
"""

from collections.abc import Sequence
from typing import Any

from ._table import op
from ._windows import Padding, pads, per_axis


@op(promote="float")
def conv1d(
    xp: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = "same",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """(batch, time, in) by a weight of (window, in / groups, out)."""
    return _convolution(
        xp, "conv1d", input, weight, bias, (stride, padding, dilation, groups)
    )


@op(promote="float")
def conv2d(
    xp: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = "same",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """(batch, height, width, in) by (window height, its width, in / groups, out)."""
    return _convolution(
        xp, "conv2d", input, weight, bias, (stride, padding, dilation, groups)
    )


@op(promote="float")
def conv1d_transpose(
    xp: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = "same",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    output_padding: int | Sequence[int] = 0,
) -> Any:
    """`conv2d_transpose` in one axis; the weight is (window, out / groups, in)."""
    windows = (stride, padding, dilation, groups)
    return _transposed(
        xp, "conv1d_transpose", input, weight, bias, windows, output_padding
    )


@op(promote="float")
def conv2d_transpose(
    xp: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = "same",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    output_padding: int | Sequence[int] = 0,
) -> Any:
    """The gradient of a convolution's data, as a layer: it makes space larger.

    The weight is that convolution's kernel, (*window, out / groups, in). Padding "same"
    makes size * stride, "valid" (size - 1) * stride + window; a number or pairs are cut
    off from that, and `output_padding` is put to the end again, as in torch.
    """
    windows = (stride, padding, dilation, groups)
    return _transposed(
        xp, "conv2d_transpose", input, weight, bias, windows, output_padding
    )


@op()
def upsample(xp: Any, input: Any, *, scale: int | Sequence[int] = 2) -> Any:
    """Each point of space repeated `scale` times along each axis (nearest)."""
    batch, *space, channels = input.shape
    times = per_axis("upsample", "scale", scale, len(space))
    apart = [batch, *(n for size in space for n in (size, 1)), channels]
    wide = [
        batch,
        *(n for pair in zip(space, times, strict=True) for n in pair),
        channels,
    ]
    larger = [size * by for size, by in zip(space, times, strict=True)]
    repeated = xp.broadcast_to(xp.reshape(input, tuple(apart)), tuple(wide))
    return xp.reshape(repeated, (batch, *larger, channels))


def _convolution(
    xp: Any, op: str, input: Any, weight: Any, bias: Any, windows: tuple[Any, ...]
) -> Any:
    stride, padding, dilation, groups = windows
    *window, read, made = weight.shape
    axes = int(op[4])
    _check(op, axes, input, weight, read * groups, made, groups)
    stride = per_axis(op, "stride", stride, axes)
    dilation = per_axis(op, "dilation", dilation, axes)
    given = pads(op, padding, input.shape[1:-1], window, stride, dilation)
    out = xp.convolution(input, weight, stride, given, dilation, groups)
    return _with_bias(xp, out, bias)


def _transposed(
    xp: Any,
    op: str,
    input: Any,
    weight: Any,
    bias: Any,
    windows: tuple[Any, ...],
    output_padding: int | Sequence[int],
) -> Any:
    stride, padding, dilation, groups = windows
    *window, _, read = weight.shape
    axes = int(op[4])
    _check(op, axes, input, weight, read, read, groups)
    stride = per_axis(op, "stride", stride, axes)
    dilation = per_axis(op, "dilation", dilation, axes)
    extra = per_axis(op, "output_padding", output_padding, axes, least=0)
    reach = [step * (size - 1) + 1 for size, step in zip(window, dilation, strict=True)]
    if padding == "same":
        surplus = [r - s for r, s in zip(reach, stride, strict=True)]
        crops = [(max(s, 0) // 2, s - max(s, 0) // 2) for s in surplus]
    else:
        crops = pads(op, padding, reach, window, stride, dilation)
    ends = [(low, high - more) for (low, high), more in zip(crops, extra, strict=True)]
    out = xp.convolution_transpose(input, weight, stride, ends, dilation, groups)
    return _with_bias(xp, out, bias)


def _check(
    op: str, axes: int, input: Any, weight: Any, read: Any, shared: int, groups: int
) -> None:
    """That the sizes belong together: `shared` is what the groups divide.

    Raises:
        ValueError: they do not.
    """
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


def _with_bias(xp: Any, out: Any, bias: Any) -> Any:
    if bias is None:
        return out
    return out + xp.reshape(bias, (1,) * (len(out.shape) - 1) + (-1,))
