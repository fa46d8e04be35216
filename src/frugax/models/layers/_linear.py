"""Fully connected layers: `Linear`, and networks of it, `MLP` and `FeedForward`."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from frugax.models.graph import (
    Composite,
    Connection,
    Fill,
    IOKey,
    Normal,
    Primitive,
    Shape,
    Weight,
    op,
    require_static,
)
from frugax.models.ops import Count


@dataclasses.dataclass(frozen=True)
class Linear(Primitive):
    """x W^T + b over the last axis; W is (dimension, inputs).

    Attributes:
        dimension: length of the last axis of the output; >= 1.
        bias: whether there is a b.
        input_size: required length of the last axis of the input; None: any.
        init: standard deviation of the initial W. `"he"`: sqrt(2 / inputs), for layers
            before a Relu or Gelu (He et al. 2015, ICCV, eq. 10). `"glorot"`:
            sqrt(2 / (inputs + dimension)) (Glorot & Bengio 2010, AISTATS, eq. 12).
    """

    dimension: Count
    bias: bool = True
    input_size: Count | None = None
    # The layer cannot see what follows it, and He's factor is right before a Relu only.
    init: Literal["he", "glorot"] = "glorot"

    op = "linear"

    def weights(self, input: Shape) -> dict[str, Weight]:
        if not input:
            raise ValueError("it needs at least one axis")
        # The batch may be symbolic, the shape of a weight may not.
        fan_in = require_static(input[-1])
        if self.input_size not in (None, fan_in):
            raise ValueError(f"the last axis must have length {self.input_size}")
        fan = fan_in
        if self.init == "glorot":
            fan += self.dimension
        std = math.sqrt(2 / max(fan, 1))
        # Laid out as (out, in), as in torch: XLA:CPU runs that product in 0.85 of the
        # time of (in, out) for 3-D data (docs/maintainers.md).
        found = {"weight": Weight((self.dimension, fan_in), Normal(std))}
        if self.bias:
            # At 0, as in both papers; torch draws it from a uniform distribution.
            found["bias"] = Weight((self.dimension,), Fill(0))
        return found


@dataclasses.dataclass(frozen=True)
class MLP(Composite):
    """Linear layers with activations between.

    Attributes:
        input_size: required length of the last axis of the input; None: any.
        hidden_sizes: length of the last axis after each hidden layer.
        output_size: length of the last axis of the output.
        activation: the op between them.
    """

    input_size: Count | None = None
    hidden_sizes: Sequence[int] = ()
    output_size: Count = 1
    activation: str = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        for size in self.hidden_sizes:
            Linear(size)  # checks the size

    def input_keys(self) -> dict[str, IOKey]:
        if self.input_size is None:
            return {}
        return {"input": IOKey("input", shape=("batch", self.input_size))}

    def build(self, input: Connection) -> Connection:
        x, before = input, self.input_size
        for size in self.hidden_sizes:
            # He initialisation compensates for the Relu; the last layer has no Relu.
            x = op(self.activation)(Linear(size, input_size=before, init="he")(x))
            before = size
        return Linear(self.output_size, input_size=before)(x)


@dataclasses.dataclass(frozen=True)
class FeedForward(Composite):
    """Two Linear layers, `up` and `down`, with an activation between.

    Attributes:
        dimension: output features.
        hidden: features between the layers; 4 * dimension by default.
        activation: the name of an op.
        gated: whether the output of `up` is multiplied by that of a layer `gate` with
            the activation: with `"silu"` SwiGLU, with `"gelu"` GEGLU (Shazeer 2020,
            arXiv:2002.05202).
        bias: whether the layers have a bias.
    """

    dimension: Count
    hidden: Count | None = None
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True

    def build(self, input: Connection) -> Connection:
        # 4 as in Vaswani et al. 2017, also where it is gated: Shazeer 2020 takes 2/3 of
        # that, so that three products have the parameters of two.
        hidden = self.hidden or 4 * self.dimension
        # He's variance for the layers before the activation, Glorot's for the one after
        # it.
        wide = Linear(hidden, bias=self.bias, init="he", name="up")(input)
        if self.gated:
            gate = Linear(hidden, bias=self.bias, init="he", name="gate")(input)
            wide = op(self.activation)(gate) * wide
        else:
            wide = op(self.activation)(wide)
        return Linear(self.dimension, bias=self.bias, name="down")(wide)
