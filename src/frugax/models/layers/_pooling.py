"""Pools over channels-last data, and the changes of size around them."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from ._settings import check_padding, check_sizes
from ._weightless import Weightless

Sizes = int | Sequence[int]
Padding = str | int | Sequence[int | Sequence[int]]


@dataclasses.dataclass(frozen=True)
class _Pool(Weightless):
    window: Sizes = 2
    stride: Sizes | None = None
    padding: Padding = "valid"

    axes: ClassVar[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window", "stride", axes=self.axes)
        check_padding(self, self.axes)


@dataclasses.dataclass(frozen=True)
class MaxPool1D(_Pool):
    """The largest of each window of (batch, time, channels).

    Attributes:
        window: times in a window.
        stride: step from one window to the next; the window if not given.
        padding: as in `Conv1D`; never the largest.
    """

    op = "max_pool1d"
    axes = 1


@dataclasses.dataclass(frozen=True)
class MaxPool2D(_Pool):
    """The largest of each window of (batch, height, width, channels).

    Attributes:
        window: side of a window, or (height, width).
        stride: step from one window to the next; the window if not given.
        padding: as in `Conv2D`; never the largest.
    """

    op = "max_pool2d"
    axes = 2


@dataclasses.dataclass(frozen=True)
class AvgPool1D(_Pool):
    """The mean of each window of (batch, time, channels).

    Attributes:
        window: times in a window.
        stride: step from one window to the next; the window if not given.
        padding: as in `Conv1D`.
        count_padding: whether padding counts as zeros, or not at all.
    """

    count_padding: bool = False

    op = "avg_pool1d"
    axes = 1


@dataclasses.dataclass(frozen=True)
class AvgPool2D(_Pool):
    """The mean of each window of (batch, height, width, channels).

    Attributes:
        window: side of a window, or (height, width).
        stride: step from one window to the next; the window if not given.
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
        keepdims: leave axes of length 1.
    """

    keepdims: bool = False

    op = "global_avg_pool"


@dataclasses.dataclass(frozen=True)
class GlobalMaxPool(Weightless):
    """The largest over space: (batch, *space, channels) to (batch, channels).

    Attributes:
        keepdims: leave axes of length 1.
    """

    keepdims: bool = False

    op = "global_max_pool"


@dataclasses.dataclass(frozen=True)
class Upsample(Weightless):
    """Each point of space repeated: (batch, size, c) to (batch, scale * size, c).

    Attributes:
        scale: how often, for all axes or for each.
    """

    scale: Sizes = 2

    op = "upsample"

    def __post_init__(self) -> None:
        super().__post_init__()
        axes = len(self.scale) if isinstance(self.scale, tuple) else 1
        check_sizes(self, "scale", axes=axes)


@dataclasses.dataclass(frozen=True)
class Flatten(Weightless):
    """Several axes as one; the batch stays: (batch, 4, 4, 8) to (batch, 128).

    Attributes:
        start: first of the axes.
        stop: the one behind the last; None: to the end.
    """

    start: int = 1
    stop: int | None = None

    op = "flatten"
