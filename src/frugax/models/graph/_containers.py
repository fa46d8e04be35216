"""Layers made of layers: one after the other, and around a short cut."""

import dataclasses

from ._layers import Layer


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Chain(Layer):
    """Layers one after the other: `Chain(Linear(8), Relu(), Linear(2))`.

    Attributes:
        layers: the layers, first to last; the place in the chain is their name.
    """

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Layer) -> None:
        """Take the layers.

        Raises:
            TypeError: something is no layer.
        """
        for i, layer in enumerate(layers):
            _check(f"Chain layer {i}", layer)
        object.__setattr__(self, "layers", layers)


@dataclasses.dataclass(frozen=True, slots=True)
class Residual(Layer):
    """x + body(x); the body keeps the shape.

    Attributes:
        body: a layer, mostly a `Chain`.
    """

    body: Layer

    def __post_init__(self) -> None:
        """Check the body.

        Raises:
            TypeError: it is no layer.
        """
        _check("Residual.body", self.body)


def _check(place: str, layer: object) -> None:
    """Refuse what is no layer.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(layer, Layer):
        raise TypeError(f"{place} must be a layer of models.graph, got {layer!r:.99}.")
