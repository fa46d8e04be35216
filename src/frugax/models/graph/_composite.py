"""Layers made of layers, by a method that wires them."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from ._connection import Connection, IOKey
from ._layer import Layer
from ._model import Model


@dataclasses.dataclass(frozen=True)
class Composite(Layer):
    """A layer made of layers: a subclass writes `build`.

    The arguments of `build` are its input ports, those with the default None may be
    left open; it returns one connection, or a dict of connections for several outputs.

    Example:
        >>> import dataclasses
        >>> from frugax.models import Composite, Linear, Model, op
        >>> @dataclasses.dataclass(frozen=True)
        ... class Gated(Composite):
        ...     width: int
        ...     def build(self, input):
        ...         gate = op("sigmoid")(Linear(self.width, name="gate")(input))
        ...         return gate * Linear(self.width, name="value")(input)
        >>> model = Model(Gated(8))
    """

    def build(self, *inputs: Any, **wires: Any) -> Connection | dict[str, Connection]:
        """Make the layers inside, from connections for the ports."""
        raise NotImplementedError

    def ports(self) -> dict[str, IOKey]:
        """What is known of the inputs from the layer's own settings."""
        return {}

    def inside(self, open_ports: frozenset[str] = frozenset()) -> Model:
        """The model inside, with some optional ports left open; built once each."""
        return _inside(_Built(self.structural_key(), self), open_ports)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(_parameters(type(self)))

    @property
    def optional(self) -> frozenset[str]:
        return frozenset(
            name for name, default in _parameters(type(self)).items() if default is None
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.inside(self.optional).outputs


@functools.lru_cache(maxsize=1024)
def _parameters(cls: type[Composite]) -> dict[str, Any]:
    parameters = list(inspect.signature(cls.build).parameters.values())[1:]
    return {p.name: p.default for p in parameters}


@dataclasses.dataclass(frozen=True, slots=True)
class _Built:
    """A layer, to look up by its structural_key what was built of an equal one."""

    structural_key: Any
    layer: Composite = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=512)
def _inside(built: _Built, open_ports: frozenset[str]) -> Model:
    """See `Composite.inside`.

    Raises:
        TypeError: what `build` returns is no connection.
    """
    layer, about = built.layer, built.layer.ports()
    given = {
        p: None if p in open_ports else about.get(p, IOKey(p)) for p in layer.inputs
    }
    made = layer.build(**given)
    model = Model()
    for key, value in (made if isinstance(made, Mapping) else {"output": made}).items():
        if not isinstance(value, Connection):
            raise TypeError(
                f"{layer.title}.build must return a connection or a dict of these, got "
                f"{value!r:.60}."
            )
        model._expose(key, value)
    model._final = True  # equal layers share it
    return model
