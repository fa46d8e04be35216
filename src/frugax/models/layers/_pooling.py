"""Layers for pooling, upsampling and flattening of channels-last data."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from ._settings import Padding, Sizes, Weightless, check_padding, check_sizes


@dataclasses.dataclass(frozen=True)
class _Pool(Weightless):
    window: Sizes = 2
    # None and not 2: the stride follows a window that is set by itself.
    stride: Sizes | None = None
    # Not "same", the default of convolutions: windows at the edge would hold less data.
    padding: Padding = "valid"

    axes: ClassVar[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window", "stride", axes=self.axes)
        check_padding(self, self.axes)


@dataclasses.dataclass(frozen=True)
class MaxPool1D(_Pool):
    """The maximum of each window of (batch, time, channels).

    Attributes:
        window: length of a window.
        stride: step from one window to the next; the window by default.
        padding: as in `Conv1D`; it is never the maximum.
    """

    op = "max_pool1d"
    axes = 1


@dataclasses.dataclass(frozen=True)
class MaxPool2D(_Pool):
    """The maximum of each window of (batch, height, width, channels).

    Attributes:
        window: side of a window, or (height, width).
        stride: step from one window to the next; the window by default.
        padding: as in `Conv2D`; it is never the maximum.
    """

    op = "max_pool2d"
    axes = 2


@dataclasses.dataclass(frozen=True)
class AvgPool1D(_Pool):
    """The mean of each window of (batch, time, channels).

    Attributes:
        window: length of a window.
        stride: step from one window to the next; the window by default.
        padding: as in `Conv1D`.
        count_padding: whether padding counts as zeros, or not at all.
    """

    # torch counts padding by default. Without it the mean of a constant image is
    # constant.
    count_padding: bool = False

    op = "avg_pool1d"
    axes = 1


@dataclasses.dataclass(frozen=True)
class AvgPool2D(_Pool):
    """The mean of each window of (batch, height, width, channels).

    Attributes:
        window: side of a window, or (height, width).
        stride: step from one window to the next; the window by default.
        padding: as in `Conv2D`.
        count_padding: whether padding counts as zeros, or not at all.
    """

    count_padding: bool = False

    op = "avg_pool2d"
    axes = 2


@dataclasses.dataclass(frozen=True)
class GlobalAvgPool(Weightless):
    """The mean over space: (batch, *space, channels) to (batch, channels).

    Attributes:
        keepdims: whether to keep the axes with length 1.
    """

    keepdims: bool = False

    op = "global_avg_pool"


@dataclasses.dataclass(frozen=True)
class GlobalMaxPool(Weightless):
    """The maximum over space: (batch, *space, channels) to (batch, channels).

    Attributes:
        keepdims: whether to keep the axes with length 1.
    """

    keepdims: bool = False

    op = "global_max_pool"


@dataclasses.dataclass(frozen=True)
class Upsample(Weightless):
    """Repeat each point of space: (batch, size, c) to (batch, scale * size, c).

    Attributes:
        scale: the number of repeats, for all axes or for each.
    """

    scale: Sizes = 2

    # With a convolution behind it this avoids the checkerboard of a transposed one
    # (Odena, Dumoulin & Olah 2016, Distill).
    op = "upsample"

    def __post_init__(self) -> None:
        super().__post_init__()
        # The number of axes of space is not known before the layer is wired.
        check_sizes(self, "scale", axes=np.size(self.scale))


@dataclasses.dataclass(frozen=True)
class Flatten(Weightless):
    """Merge axes, by default all but the batch: (batch, 4, 4, 8) to (batch, 128).

    Attributes:
        start: the first of the axes.
        end: the last of the axes, which is merged as well.
    """

    start: int = 1
    end: int = -1

    op = "flatten"

    def attrs(self) -> dict[str, Any]:
        # The op takes Python's bounds, whose end is not included.
        return {"start": self.start, "stop": self.end + 1 if self.end != -1 else None}
