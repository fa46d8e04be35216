"""The torch implementation of convolution and pooling ops, on channels-last data.

torch expects channels second. A transposed view of data with channels last has the
layout that it calls `channels_last`, for which it has fast code: nothing is copied.
"""

import math
from collections.abc import Sequence

import torch
from torch.nn import functional as F

Pads = Sequence[tuple[int, int]]
_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class ConvolutionKernels:
    """Methods that `Kernels` inherits; sizes are one number for each axis of space."""

    def convolution(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        stride: Sequence[int],
        padding: Pads,
        dilation: Sequence[int],
        groups: int,
    ) -> torch.Tensor:
        """Kernels (*window, in / groups, out) over (batch, *space, in)."""
        x, pads = _padded(input.movedim(-1, 1), padding, 0.0)
        out = _CONVOLUTIONS[len(stride)](
            x,
            _channels_first(weight),
            stride=tuple(stride),
            padding=pads,
            dilation=tuple(dilation),
            groups=groups,
        )
        return out.movedim(1, -1)

    def convolution_transpose(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        stride: Sequence[int],
        crops: Pads,
        dilation: Sequence[int],
        groups: int,
    ) -> torch.Tensor:
        """A convolution's gradient in the data; (*window, out / g, in)."""
        # torch's `padding` crops both ends alike. Everything else is computed whole and
        # cut after, where a negative pad is a crop.
        even = all(low == high >= 0 for low, high in crops)
        out = _TRANSPOSED[len(stride)](
            input.movedim(-1, 1),
            _channels_first(weight),
            stride=tuple(stride),
            padding=tuple(low for low, _ in crops) if even else 0,
            dilation=tuple(dilation),
            groups=groups,
        )
        if not even:
            out = F.pad(out, [-p for pair in reversed(crops) for p in pair])
        return out.movedim(1, -1)

    def max_pool(
        self,
        input: torch.Tensor,
        window: Sequence[int],
        stride: Sequence[int],
        padding: Pads,
    ) -> torch.Tensor:
        """The largest of each window."""
        x, pads = _padded(input.movedim(-1, 1), padding, -math.inf, window)
        pool = _MAX_POOLS[len(window)]
        return pool(x, tuple(window), tuple(stride), pads).movedim(1, -1)

    def sum_pool(
        self,
        input: torch.Tensor,
        window: Sequence[int],
        stride: Sequence[int],
        padding: Pads,
    ) -> torch.Tensor:
        """The sum of each window."""
        x, pads = _padded(input.movedim(-1, 1), padding, 0.0, window)
        pool = _AVG_POOLS[len(window)]
        means = pool(x, tuple(window), tuple(stride), pads)
        # torch has no sum pool. Its mean divides by the whole window, padding included,
        # so the product undoes that.
        return means.movedim(1, -1) * math.prod(window)


def _channels_first(weight: torch.Tensor) -> torch.Tensor:
    """(*window, a, b) as (b, a, *window)."""
    *window, a, b = range(weight.ndim)
    # A view in any order of memory; torch's convolutions accept it without a copy.
    return weight.permute(b, a, *window)


def _padded(
    x: torch.Tensor,
    padding: Pads,
    value: float,
    window: Sequence[int] = (),
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the data and the padding left for the kernel: all of it, or none."""
    # torch's pools pad both ends alike, and half a window at most.
    wide = any(2 * p[0] > size for p, size in zip(padding, window, strict=False))
    if not wide and all(low == high for low, high in padding):
        return x, tuple(low for low, _ in padding)
    flat = [p for pair in reversed(padding) for p in pair]
    return F.pad(x, flat, value=value), (0,) * len(padding)
