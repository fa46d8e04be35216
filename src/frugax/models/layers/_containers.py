"""`Sequential` and `Residual`: layers that contain other layers."""

import dataclasses
from collections.abc import Sequence

from frugax.models.graph import Composite, Connection, Layer


@dataclasses.dataclass(frozen=True)
class Sequential(Composite):
    """Layers in sequence; of several outputs the first is passed on.

    Unlike `Model` it compares equal to another one with equal layers.

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
        # Checked here, where the place in the list can still be named.
        for i, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise TypeError(
                    f"Sequential.layers[{i}] must be a layer, got {layer!r:.60}."
                )

    def build(self, input: Connection) -> Connection:
        x = input
        for layer in self.layers:
            # A recurrent layer has its states as further outputs; the next layer wants
            # the data.
            x = _first(layer(x))
        return x


@dataclasses.dataclass(frozen=True)
class Residual(Composite):
    """A residual connection: x + layer(x), which must have equal shapes.

    He et al. 2016, arXiv:1512.03385.

    Attributes:
        layer: the layer.
    """

    layer: Layer

    def build(self, input: Connection) -> Connection:
        # The identity path carries gradients past the layer unchanged, whatever the
        # depth (He et al. 2016, arXiv:1603.05027).
        return input + _first(self.layer(input))


def _first(output: Connection | tuple[Connection, ...]) -> Connection:
    if isinstance(output, tuple):
        return output[0]
    return output
