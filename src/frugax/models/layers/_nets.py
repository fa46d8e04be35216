"""Ready-made networks: residual MLP, ConvNet, U-Net; for tokens see `TransformerLM`."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from frugax.models.graph import Composite, Connection, Layer, Repeat, op
from frugax.models.ops import Count, Natural

from ._convolutions import Conv2D, ConvTranspose2D
from ._linear import Linear
from ._norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from ._one_op import Gelu, GlobalAvgPool, MaxPool2D, Relu


@dataclasses.dataclass(frozen=True)
class ResidualBlock(Composite):
    """x + down(gelu(up(norm(x)))), with as many features as the input.

    Attributes:
        width: features of the residual connection.
        hidden: features between `up` and `down`; `width` by default.
    """

    width: Count
    hidden: Count | None = None

    def build(self, input: Connection) -> Connection:
        hidden = self.hidden or self.width
        x = Linear(hidden, init="he", name="up")(LayerNorm(name="norm")(input))
        # The norm is inside of the branch, so the sum of all blocks stays free of norms
        # (pre-norm; Xiong et al. 2020, arXiv:2002.04745).
        return input + Linear(self.width, name="down")(Gelu()(x))


@dataclasses.dataclass(frozen=True)
class ResidualMLP(Composite):
    """Blocks of norm, Linear, Gelu and Linear, each with a residual connection.

    (..., features) to (..., classes). Its blocks are `block_0`, `block_1`, ...

    Attributes:
        width: features of the residual connections.
        depth: the number of blocks.
        classes: output features.
        hidden: features inside a block; `width` by default.

    Example:
        >>> from frugax.models import JaxBackend, ResidualMLP, compile
        >>> model = ResidualMLP(width=64, depth=16, classes=10)
        >>> compiled = compile(model, JaxBackend(), shapes={"input": ("batch", 784)})
        >>> compiled.shapes["block_*.up.weight"]
        (16, 64, 64)
    """

    width: Count
    depth: Natural
    classes: Count
    hidden: Count | None = None

    def build(self, input: Connection) -> Connection:
        x = Linear(self.width, init="he", name="first")(input)
        if self.depth:
            block = ResidualBlock(self.width, self.hidden)
            x = Repeat(block, self.depth, name="block")(x)
        # Pre-norm blocks leave the sum unnormalised, so a norm precedes the last layer.
        return Linear(self.classes, name="last")(LayerNorm(name="norm")(x))


@dataclasses.dataclass(frozen=True)
class ConvNet(Composite):
    """Convolutions with Relu, of stride 2 from the second on, and a mean over space.

    (batch, height, width, in) to (batch, classes).

    Attributes:
        channels: channels of each convolution.
        classes: output features.
        kernel: side of the windows.
    """

    channels: Sequence[int]
    classes: Count
    kernel: Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_channels(self, self.channels)

    def build(self, input: Connection) -> Connection:
        x = input
        for i, channels in enumerate(self.channels):
            # Strides take the place of pools (Springenberg et al. 2015,
            # arXiv:1412.6806).
            stride = min(i + 1, 2)
            x = Relu()(Conv2D(channels, self.kernel, stride=stride)(x))
        # A mean over space fits images of any size, and takes far fewer weights than
        # flattening (Lin et al. 2014, arXiv:1312.4400).
        return Linear(self.classes)(GlobalAvgPool()(x))


Norm = Literal["none", "batch", "group", "instance"]


@dataclasses.dataclass(frozen=True)
class ConvBlock(Composite):
    """Two convolutions that keep the size of the image, each with a norm and a Relu.

    Attributes:
        channels: output channels.
        kernel: side of the windows.
        norm: `"batch"`, `"group"` (of 8 groups, or as many as divide both 8 and the
            channels), `"instance"` or `"none"`.
    """

    channels: Count
    kernel: Count = 3
    # Group norm does not depend on the batch; small batches make the statistics of a
    # batch norm noisy (Wu & He 2018, fig. 1).
    norm: Norm = "group"

    def build(self, input: Connection) -> Connection:
        norms = {
            "batch": BatchNorm(),
            # The largest of 8, 4, 2 and 1 that divides the channels, as groups must.
            "group": GroupNorm(math.gcd(8, self.channels)),
            "instance": InstanceNorm(),
        }
        x = input
        for _ in range(2):
            # A norm subtracts the mean, and a bias with it.
            x = Conv2D(self.channels, self.kernel, bias=self.norm == "none")(x)
            if self.norm != "none":
                x = norms[self.norm](x)
            x = Relu()(x)
        return x


@dataclasses.dataclass(frozen=True)
class UNetDown(Composite):
    """A `ConvBlock`, with its result as `skip` and at half the size as `output`.

    Attributes:
        channels: output channels.
        kernel: side of the windows.
        norm: as in `ConvBlock`.
    """

    channels: Count
    kernel: Count = 3
    norm: Norm = "group"

    def build(self, input: Connection) -> dict[str, Connection]:
        block = ConvBlock(self.channels, self.kernel, self.norm, name="block")
        # Taken before the pool: the way up needs the positions that pooling loses.
        skip = block(input)
        return {"output": MaxPool2D(2)(skip), "skip": skip}


@dataclasses.dataclass(frozen=True)
class UNetUp(Composite):
    """Double the size, concatenate with `skip`, and apply a `ConvBlock`.

    Attributes:
        channels: output channels.
        kernel: side of the windows.
        norm: as in `ConvBlock`.
    """

    channels: Count
    kernel: Count = 3
    norm: Norm = "group"

    def build(self, input: Connection, skip: Connection) -> Connection:
        # The kernel is as long as the stride, so windows tile the image without
        # overlap.
        larger = ConvTranspose2D(self.channels, kernel=2, stride=2, name="up")(input)
        # Concatenated and not added, as in the paper: the block learns how to weigh the
        # two.
        both = op("concat", axis=-1)(skip, larger)
        return ConvBlock(self.channels, self.kernel, self.norm, name="block")(both)


@dataclasses.dataclass(frozen=True)
class UNet(Composite):
    """U-Net: from images to images of equal size, with skip connections.

    (batch, height, width, in) to (..., classes); 2^(levels - 1) must divide height and
    width. Ronneberger, Fischer & Brox 2015, arXiv:1505.04597, here with padding.

    Attributes:
        channels: channels of each level, the full size first.
        classes: output channels.
        kernel: side of the windows.
        norm: as in `ConvBlock`.
    """

    channels: Sequence[int]
    classes: Count
    kernel: Count = 3
    norm: Norm = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_channels(self, self.channels)
        ConvBlock(self.channels[0], self.kernel, self.norm)  # checks the rest

    def build(self, input: Connection) -> Connection:
        # The skip connections are read in reverse order: the lowest level first.
        x, skips = input, []
        *levels, lowest = enumerate(self.channels)
        for i, channels in levels:
            x, skip = UNetDown(channels, self.kernel, self.norm, name=f"down_{i}")(x)
            skips.append(skip)
        x = ConvBlock(lowest[1], self.kernel, self.norm, name="lowest")(x)
        for i, channels in reversed(levels):
            up = UNetUp(channels, self.kernel, self.norm, name=f"up_{i}")
            x = up(x, skips[i])
        # Logits, without a Relu behind them: Glorot's variance.
        return Conv2D(self.classes, kernel=1, init="glorot", name="last")(x)


def _check_channels(layer: Layer, channels: Sequence[int]) -> None:
    if not channels or any(not isinstance(n, int) or n < 1 for n in channels):
        raise ValueError(
            f"{type(layer).__name__}.channels must be whole numbers >= 1, at least one "
            f"of them, got {channels!r:.60}."
        )
