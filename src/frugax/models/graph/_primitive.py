"""Layers that are one op of the table, with the weights it reads."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from ._layer import Layer
from ._weights import Weight


@dataclasses.dataclass(frozen=True)
class Primitive(Layer):
    """One op of the table together with the weights it reads.

    A subclass says which op, which ports, and from the ports' shapes which weights.
    """

    op: ClassVar[str]
    ports: ClassVar[tuple[str, ...]] = ("input",)
    open_ports: ClassVar[frozenset[str]] = frozenset()
    weight_names: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})
    port_dtypes: ClassVar[Mapping[str, str]] = {}
    gives: ClassVar[tuple[str, ...]] = ("output",)

    @property
    def op_name(self) -> str:
        """The op's name in the table."""
        return self.op

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.ports

    @property
    def optional(self) -> frozenset[str]:
        return self.open_ports | self.weight_names

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.gives

    def attrs(self) -> dict[str, Any]:
        """The op's attributes: plain values only."""
        return {}

    def weights(self, *shapes: Any, **_: Any) -> dict[str, Weight]:
        """The arrays it owns, for inputs of these shapes (one for each port).

        Raises:
            ValueError: the shapes do not suit the layer.
        """
        return {}

    def inference_layer(self) -> "Layer | None":
        """What takes its place when the model only infers; None: its first input."""
        return self
