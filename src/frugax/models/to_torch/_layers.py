"""What each leaf computes, in torch. `x` has the batch as its first axis."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from frugax.models.graph import (
    Conv,
    Flatten,
    Gelu,
    LayerNorm,
    Leaf,
    Linear,
    MeanPool,
    Relu,
    Tanh,
)


def linear(
    layer: Linear,
    x: Float[Tensor, "*places inputs"],
    weight: Float[Tensor, "features inputs"],
    bias: Float[Tensor, " features"] | None = None,
) -> Float[Tensor, "*places features"]:
    """See `graph.Linear`."""
    return F.linear(x, weight, bias)


def conv(
    layer: Conv,
    x: Float[Tensor, "batch height width inputs"],
    weight: Float[Tensor, "kernel kernel inputs features"],
    bias: Float[Tensor, " features"],
) -> Float[Tensor, "batch rows columns features"]:
    """See `graph.Conv`. torch wants the channels in front."""
    (top, bottom), (left, right) = layer.padding(tuple(x.shape[1:]))
    image = F.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom))
    y = F.conv2d(image, weight.permute(3, 2, 0, 1), bias, stride=layer.stride)
    return y.permute(0, 2, 3, 1)


def layer_norm(
    layer: LayerNorm,
    x: Float[Tensor, "*places features"],
    scale: Float[Tensor, " features"],
    shift: Float[Tensor, " features"],
) -> Float[Tensor, "*places features"]:
    """See `graph.LayerNorm`."""
    return F.layer_norm(x, x.shape[-1:], scale, shift, layer.epsilon)


def mean_pool(
    layer: MeanPool, x: Float[Tensor, "batch height width channels"]
) -> Float[Tensor, "batch ... channels"]:
    """See `graph.MeanPool`."""
    if layer.window is None:
        return x.mean(dim=(1, 2))
    batch, height, width, channels = x.shape
    n = layer.window
    windows = x.reshape(batch, height // n, n, width // n, n, channels)
    return windows.mean(dim=(2, 4))


RUN: dict[type[Leaf], Callable[..., Any]] = {
    Conv: conv,
    Flatten: lambda layer, x: x.reshape(x.shape[0], -1),
    Gelu: lambda layer, x: F.gelu(x),
    LayerNorm: layer_norm,
    Linear: linear,
    MeanPool: mean_pool,
    Relu: lambda layer, x: torch.relu(x),
    Tanh: lambda layer, x: torch.tanh(x),
}
