"""Models of the usual makes."""

from collections.abc import Sequence

from ._containers import Chain, Residual
from ._layers import Conv, Gelu, Layer, LayerNorm, Linear, MeanPool, Relu


def mlp(hidden: Sequence[int], classes: int) -> Chain:
    """Linear layers with a Relu between.

    Args:
        hidden: features of each hidden layer.
        classes: features that come out.
    """
    layers: list[Layer] = []
    for features in hidden:
        layers += [Linear(features), Relu()]
    return Chain(*layers, Linear(classes, init="glorot"))


def residual_mlp(
    width: int, depth: int, classes: int, *, hidden: int | None = None
) -> Chain:
    """Blocks of norm, Linear, Gelu, Linear, each around a short cut.

    Args:
        width: features that the short cuts carry.
        depth: how many blocks; >= 0.
        classes: features that come out.
        hidden: features inside a block; as many as `width` if not given.

    Raises:
        ValueError: `depth` is negative.
    """
    if depth < 0:
        raise ValueError(f"depth must be >= 0, got {depth}.")
    block = Residual(
        Chain(
            LayerNorm(),
            Linear(width if hidden is None else hidden),
            Gelu(),
            Linear(width, init="glorot"),
        )
    )
    last = Linear(classes, init="glorot")
    return Chain(Linear(width), *[block] * depth, LayerNorm(), last)


def convnet(channels: Sequence[int], classes: int, *, kernel: int = 3) -> Chain:
    """Convolutions with a Relu, halving the image from the second on; then its mean.

    Args:
        channels: features of each convolution.
        classes: features that come out.
        kernel: side of the square that each sees.
    """
    layers: list[Layer] = []
    for i, features in enumerate(channels):
        layers += [Conv(features, kernel, stride=1 if i == 0 else 2), Relu()]
    return Chain(*layers, MeanPool(), Linear(classes, init="glorot"))
