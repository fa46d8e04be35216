"""Convolution layers for channels-last sequences and images, and transposed ones.

Kernels are (*window, in / groups, out), those of transposed convolutions (*window,
out / groups, in). Sizes are one number for all axes of space, or one for each.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np

from frugax.models.graph import Fill, Normal, Shape, Weight, require_static
from frugax.models.ops import Count, Padding, Sizes, padding_pairs, per_axis

from ._divisors import check_divides
from ._field_op import FieldOp


@dataclasses.dataclass(frozen=True)
class _Convolution(FieldOp):
    channels: Count
    kernel: Sizes = 3
    stride: Sizes = 1
    padding: Padding = "same"
    dilation: Sizes = 1
    groups: Count = 1
    bias: bool = True
    # Most convolutions precede a Relu, which halves the second moment: hence He's
    # factor.
    init: Literal["he", "glorot"] = "he"

    axes: ClassVar[int]
    # Channels and kernel are in the shape of the weight, and the op is not told twice.
    own_fields = frozenset({"channels", "kernel", "bias", "init"})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kernel", "stride", "dilation"):
            per_axis(self.label(name), getattr(self, name), axes=self.axes)
        padding_pairs(self.label("padding"), self.padding, axes=self.axes)
        check_divides(self, "groups", of="channels")

    def weights(self, input: Shape) -> dict[str, Weight]:
        if len(input) != self.axes + 2:
            axes = ("time", "height, width")[self.axes - 1]
            raise ValueError(
                f"it needs (batch, {axes}, channels), which is {self.axes + 2} axes"
            )
        before = require_static(input[-1])
        if before % self.groups:
            raise ValueError(f"groups={self.groups} must divide its {before} channels")
        shape = self.weight_shape(before)
        found = {"weight": Weight(shape, Normal(self.std(before)))}
        if self.bias:
            # At 0, as in both papers: random kernels break the symmetry between
            # channels.
            found["bias"] = Weight((self.channels,), Fill(0))
        return found

    def label(self, name: str) -> str:
        return f"{type(self).__name__}.{name}"

    def window(self) -> tuple[int, ...]:
        return per_axis(self.label("kernel"), self.kernel, axes=self.axes)

    def weight_shape(self, before: int) -> tuple[int, ...]:
        return (*self.window(), before // self.groups, self.channels)

    def std(self, before: int) -> float:
        points = math.prod(self.window()) / self.groups
        # He et al. 2015, eq. 10 (fan-in); Glorot & Bengio 2010, eq. 12 (both fans). A
        # group sees only its own channels, so groups divide both.
        fan = before * points
        if self.init == "glorot":
            fan += self.channels * points
        return math.sqrt(2 / max(fan, 1))


@dataclasses.dataclass(frozen=True)
class Conv1D(_Convolution):
    """Convolution in time: (batch, time, in) to (batch, shorter time, channels).

    Attributes:
        channels: output channels.
        kernel: length of the window.
        stride: step from one window to the next.
        padding: zeros around: `"same"` (time / stride outputs), `"valid"` (none), how
            many, or ((before, after),).
        dilation: step between the points of a window.
        groups: groups of channels that are convolved separately.
        bias: whether there is a bias for each channel.
        init: standard deviation of the initial kernel, as in `Linear`.
    """

    op = "conv1d"
    axes = 1


@dataclasses.dataclass(frozen=True)
class Conv2D(_Convolution):
    """Convolution of images: (batch, height, width, in) to (..., channels).

    Attributes:
        channels: output channels.
        kernel: side of the window, or (height, width).
        stride: step from one window to the next.
        padding: zeros around: `"same"` (size / stride outputs), `"valid"` (none), how
            many, or (before, after) for each axis.
        dilation: step between the points of a window.
        groups: groups of channels that are convolved separately; with one for each
            channel this is a depthwise convolution.
        bias: whether there is a bias for each channel.
        init: standard deviation of the initial kernel, as in `Linear`.

    Example:
        >>> from frugax.models import Conv2D, JaxBackend, compile
        >>> halve = Conv2D(16, kernel=5, stride=2)
        >>> halved = compile(halve, JaxBackend(), shapes={"input": (8, 32, 32, 3)})
        >>> halved.shapes["output"]
        (8, 16, 16, 16)
        >>> halved.shapes["weight"]
        (5, 5, 3, 16)
    """

    op = "conv2d"
    axes = 2


@dataclasses.dataclass(frozen=True)
class _Transposed(_Convolution):
    output_padding: Sizes = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        place = self.label("output_padding")
        per_axis(place, self.output_padding, axes=self.axes, least=0)

    def weight_shape(self, before: int) -> tuple[int, ...]:
        # The kernel of the convolution that is transposed: its output channels are read
        # here.
        return (*self.window(), self.channels // self.groups, before)

    def std(self, before: int) -> float:
        # An output sums over every stride-th point of the kernel only, so its fan-in is
        # smaller by the product of the strides.
        stride = np.broadcast_to(self.stride, self.axes)
        return super().std(before) * math.sqrt(math.prod(stride.tolist()))


@dataclasses.dataclass(frozen=True)
class ConvTranspose1D(_Transposed):
    """Transposed convolution in time: time becomes `stride` times longer.

    Attributes:
        channels: output channels.
        kernel: length of the window.
        stride: step from one input's window to the next.
        padding: `"same"` gives time * stride outputs, `"valid"` (time - 1) * stride +
            kernel; a number or pair is cut off from that.
        dilation: step between the points of a window.
        groups: groups of channels that are convolved separately.
        bias: whether there is a bias for each channel.
        init: standard deviation of the initial kernel, as in `Linear`.
        output_padding: points that are added to the end again.
    """

    op = "conv1d_transpose"
    axes = 1


@dataclasses.dataclass(frozen=True)
class ConvTranspose2D(_Transposed):
    """Transposed convolution of images, which become `stride` times larger.

    The settings are those of `ConvTranspose1D`, for each axis.
    Zeiler et al. 2010, CVPR (deconvolutional networks).
    """

    # A kernel that the stride does not divide covers outputs unevenly, which shows as a
    # checkerboard (Odena, Dumoulin & Olah 2016, Distill).
    op = "conv2d_transpose"
    axes = 2
