"""`Composite`: base class of user-defined layers, whose `build` wires other layers."""

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

    The arguments of `build` are the input ports; ports with the default None may be
    left open. It returns one connection, or a dict of connections for several outputs.

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
        """Wire the layers inside, from a connection for each port."""
        raise NotImplementedError

    def input_keys(self) -> dict[str, IOKey]:
        """Shapes and dtypes of inputs that follow from the settings of the layer."""
        return {}

    def expand(self, open_ports: frozenset[str] = frozenset()) -> Model:
        """The model inside, with these optional ports left open; built once each."""
        # Open ports are part of the key: `build` sees None for them, so it may wire
        # other layers.
        return _build_model(_CacheKey(self.structural_key(), self), open_ports)

    @property
    def inputs(self) -> tuple[str, ...]:
        # The ports are known from the signature alone. Building the model for them
        # would need the ports first.
        return tuple(_build_defaults(type(self)))

    @property
    def optional(self) -> frozenset[str]:
        defaults = _build_defaults(type(self)).items()
        return frozenset(name for name, default in defaults if default is None)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.expand(self.optional).outputs


@functools.lru_cache(maxsize=1024)
def _build_defaults(cls: type[Composite]) -> dict[str, Any]:
    parameters = list(inspect.signature(cls.build).parameters.values())[1:]
    return {p.name: p.default for p in parameters}


@dataclasses.dataclass(frozen=True, slots=True)
class _CacheKey:
    """A layer that is looked up by its structure: equal layers share one model."""

    structural_key: Any
    layer: Composite = dataclasses.field(compare=False)


# 64 equal blocks are built once; without the cache describing a deep model would be
# most of the time that compiling it takes.
@functools.lru_cache(maxsize=512)
def _build_model(key: _CacheKey, open_ports: frozenset[str]) -> Model:
    """Build the model inside a composite layer."""
    layer, input_keys = key.layer, key.layer.input_keys()
    ports: dict[str, Any] = {}
    for port in layer.inputs:
        ports[port] = input_keys.get(port, IOKey(port))
        if port in open_ports:
            ports[port] = None
    outputs = layer.build(**ports)
    if not isinstance(outputs, Mapping):
        outputs = {"output": outputs}
    model = Model()
    for name, value in outputs.items():
        if not isinstance(value, Connection):
            raise TypeError(
                f"{layer.title}.build must return a connection or a dict of these, got "
                f"{value!r:.60}."
            )
        model._expose(name, value)
    model._is_final = True  # equal layers share it, so nobody may extend it
    return model
