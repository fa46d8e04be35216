"""Layers made of any other layers."""

import dataclasses
from collections.abc import Sequence

from frugax.models.graph import Composite, Connection, Layer


@dataclasses.dataclass(frozen=True)
class Sequential(Composite):
    """Layers one behind the other; of several results the first goes on.

    Unlike a `Model` it is equal to another one of equal layers, so that many of them in
    a row can become one loop.

    Attributes:
        layers: the layers, first to last.

    Example:
        >>> from frugax.models import JaxBackend, Linear, Relu, Sequential, compile
        >>> model = Sequential([Linear(8, init="he"), Relu(), Linear(2)])
        >>> compiled = compile(model, JaxBackend(), shapes={"input": ("batch", 4)})
        >>> sorted(compiled.param_keys)
        ['linear_0.bias', 'linear_0.weight', 'linear_1.bias', 'linear_1.weight']
    """

    layers: Sequence[Layer]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers:
            raise ValueError("Sequential.layers is empty; it needs at least one layer.")
        for i, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise TypeError(
                    f"Sequential.layers[{i}] must be a layer, got {layer!r:.60}."
                )

    def build(self, input: Connection) -> Connection:
        x = input
        for layer in self.layers:
            x = _first(layer(x))
        return x


@dataclasses.dataclass(frozen=True)
class Residual(Composite):
    """A layer around a short cut: x + layer(x), which must have equal shapes.

    He et al. 2016, arXiv:1512.03385.

    Attributes:
        layer: what is added.
    """

    layer: Layer

    def build(self, input: Connection) -> Connection:
        return input + _first(self.layer(input))


def _first(made: Connection | tuple[Connection, ...]) -> Connection:
    return made[0] if isinstance(made, tuple) else made
