"""The nets of the benchmark: their sizes, one batch, and the common initial weights.

Weights are NumPy arrays under one set of names and in one layout, that of torch:
`(out, in)` for matrices, `(out, in, height, width)` for kernels, images with channels
first. Each contestant turns them into its own form and its gradients back.
"""

import dataclasses
import itertools
import math

import numpy as np

EPSILON = 1e-5  # of LayerNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Net:
    """The common fields of all nets.

    Attributes:
        batch: examples a step.
    """

    batch: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights."""
        raise NotImplementedError

    def weights(self) -> dict[str, np.ndarray]:
        """The same at every call: matrices that keep the scale, biases that show."""
        rng = np.random.default_rng(0)
        made = {}
        for name, shape in self.shapes().items():
            drawn = rng.standard_normal(shape)
            if name.endswith("bias"):
                drawn = 0.1 * drawn
            elif len(shape) == 1:
                drawn = 1 + 0.1 * drawn
            else:
                drawn = drawn / math.sqrt(math.prod(shape[1:]))
            made[name] = drawn.astype(np.float32)
        return made

    def data(self) -> np.ndarray:
        """A batch."""
        drawn = np.random.default_rng(1).standard_normal(self.input_shape)
        return drawn.astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(Net):
    """Linear layers, a ReLU between each two.

    Attributes:
        sizes: features, from the input to the output.
    """

    sizes: tuple[int, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.batch, self.sizes[0]

    @property
    def depth(self) -> int:
        return len(self.sizes) - 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        made: dict[str, tuple[int, ...]] = {}
        for i, (before, after) in enumerate(itertools.pairwise(self.sizes)):
            made |= {f"{i}.weight": (after, before), f"{i}.bias": (after,)}
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder(Net):
    """Pre-norm transformer blocks: attention, then two linear layers and a GELU (erf).

    Attributes:
        layers: blocks.
        length: tokens of an example.
        width: features of a token.
        heads: of attention.
        hidden: features between the two linear layers.
    """

    layers: int = 4
    length: int = 64
    width: int = 128
    heads: int = 4
    hidden: int = 512

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.batch, self.length, self.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        linear = {
            "qkv": (3 * self.width, self.width),
            "out": (self.width, self.width),
            "up": (self.hidden, self.width),
            "down": (self.width, self.hidden),
        }
        made: dict[str, tuple[int, ...]] = {}
        for i in range(self.layers):
            for norm in ("norm1", "norm2"):
                made[f"{i}.{norm}.weight"] = (self.width,)
                made[f"{i}.{norm}.bias"] = (self.width,)
            for name, shape in linear.items():
                made[f"{i}.{name}.weight"] = shape
                made[f"{i}.{name}.bias"] = shape[:1]
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv(Net):
    """3x3 convolutions that keep the size, each with ReLU and 2x2 max-pooling; linear.

    Attributes:
        size: height and width of an image.
        channels: from the input's to those of the last convolution.
        classes: outputs.
    """

    size: int = 32
    channels: tuple[int, ...] = (3, 16, 32, 64)
    classes: int = 10

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.batch, self.channels[0], self.size, self.size

    @property
    def depth(self) -> int:
        return len(self.channels) - 1

    @property
    def last(self) -> tuple[int, int, int]:
        """The input of the linear layer: channels, height, width."""
        side = self.size // 2**self.depth
        return self.channels[-1], side, side

    def shapes(self) -> dict[str, tuple[int, ...]]:
        made: dict[str, tuple[int, ...]] = {}
        for i, (before, after) in enumerate(itertools.pairwise(self.channels)):
            made |= {f"{i}.weight": (after, before, 3, 3), f"{i}.bias": (after,)}
        made["head.weight"] = (self.classes, math.prod(self.last))
        made["head.bias"] = (self.classes,)
        return made


NETS: dict[str, Net] = {
    "mlp": MLP(sizes=(784, 256, 128, 10), batch=128),
    "encoder": Encoder(batch=8),
    "conv": Conv(batch=16),
    "linear4": MLP(sizes=(4, 4), batch=1),
    "deep8": MLP(sizes=(8,) * 11, batch=1),
}
# Nets timed by their step, and nets timed by their dispatch.
SIZED = ("mlp", "encoder", "conv")
TINY = ("linear4", "deep8")
