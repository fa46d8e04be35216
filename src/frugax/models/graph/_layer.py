"""What a layer is, and how it is wired.

Layers are descriptions: using one twice gives two sets of weights.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ._connection import Connection, IOKey, as_connection

LAYERS: dict[str, type["Layer"]] = {}


@dataclasses.dataclass(frozen=True)
class Layer:
    """Base of everything a model is made of.

    Attributes:
        name: what it is called in keys and errors; its kind and a number if not given.
    """

    name: str | None = dataclasses.field(default=None, kw_only=True, compare=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        place = lambda c: (c.__module__, c.__qualname__)
        # The same class made anew, as in a notebook, takes its old place.
        if place(LAYERS.get(cls.__name__, cls)) == place(cls):
            LAYERS[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Make lists tuples, so that equal layers can be found."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, _as_tuple(value))

    @property
    def kind(self) -> str:
        """The start of its name where none is given, such as `layer_norm`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ports that something goes in at, in order."""
        raise NotImplementedError

    @property
    def optional(self) -> frozenset[str]:
        """Those of them that may be left open, and the weights that may be wired."""
        return frozenset()

    @property
    def outputs(self) -> tuple[str, ...]:
        """The ports that something comes out at, in order."""
        return ("output",)

    @property
    def title(self) -> str:
        """What an error calls it: its name if it has one, and its class."""
        kind = type(self).__name__
        return f"{self.name!r} ({kind})" if self.name else kind

    def __call__(self, *inputs: Any, **wires: Any) -> Any:
        """Wire the layer.

        With connections only, it gives a connection for what comes out (a tuple if
        that is several); a port left open becomes an input of the model, of the port's
        name. With a key's name among the wires, or nothing at all, it gives something
        for `model |= ...` and `model += ...`.

        Args:
            inputs: what goes in, by place.
            wires: what goes in by port, and names for what comes out; None leaves an
                optional port open.

        Raises:
            TypeError: there are more inputs than ports.
            ValueError: a port is unknown or wired twice.
        """
        given = self._by_port(inputs, wires)
        results = self.outputs
        names = {p: _as_name(self, p, v) for p, v in given.items() if p in results}
        ins = {p: as_connection(v) for p, v in given.items() if p not in results}
        open_ports = [p for p in self.needed if p not in ins]
        by_name = any(isinstance(v, str) for v in given.values())
        if by_name or names or (open_ports and not given):
            return WiredLayer(LayerCall(self, ins, names))
        call = LayerCall(self, ins | {p: IOKey(p) for p in open_ports}, {})
        # A renewed state is among the model's outputs by itself.
        made = [
            LayerOutput(call, port) for port in results if not port.startswith("new_")
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def structural_key(self) -> Any:
        """Something equal for layers that do the same, whatever their own names are.

        Names of layers inside count: they are in the keys of the weights.
        """
        settings = vars(self).items()
        return (type(self), *((k, hash_key(v)) for k, v in settings if k != "name"))

    def connect(self, *inputs: Any, **wires: Any) -> Any:
        """The same as calling the layer."""
        return self(*inputs, **wires)

    @property
    def needed(self) -> tuple[str, ...]:
        """The ports that cannot be left open."""
        return tuple(p for p in self.inputs if p not in self.optional)

    def _by_port(
        self, inputs: tuple[Any, ...], wires: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What was given at each port: ports in their own order, then weights.

        Raises:
            TypeError: there are more inputs than ports.
            ValueError: a port is unknown or wired twice.
        """
        ports, optional = self.inputs, self.optional
        if len(inputs) > len(ports):
            raise TypeError(
                f"{self.title} takes {len(ports)} inputs ({_some(ports)}), got "
                f"{len(inputs)}."
            )
        given = dict(zip(ports, inputs, strict=False))
        known = {*ports, *optional, *self.outputs}
        for port, value in wires.items():
            if port in given:
                raise ValueError(f"{self.title}: {port!r} is wired twice.")
            if port not in known:
                raise ValueError(
                    f"{self.title} has no port {port!r}; it takes "
                    f"{_some([*ports, *sorted(optional - set(ports))])} and gives "
                    f"{_some(self.outputs)}."
                )
            given[port] = value
        kept = {p: v for p, v in given.items() if v is not None or p not in optional}
        return {p: kept[p] for p in (*ports, *kept) if p in kept}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LayerCall:
    """One use of a layer: what goes in at each port, and what its results are called.

    Attributes:
        layer: the layer.
        wires: a connection for each input port or weight that is wired.
        names: the names that the user gave to output ports.
        owner: the model whose keys the wires name; None if no model is needed to
            read them.
    """

    layer: Layer
    wires: Mapping[str, Connection]
    names: Mapping[str, IOKey]
    owner: Layer | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WiredLayer:
    """A layer with its ports named, ready for `model |= ...`."""

    call: LayerCall


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LayerOutput(Connection):
    """What one use of a layer gives at one of its output ports."""

    call: LayerCall
    port: str

    @property
    def place(self) -> tuple[int, str]:
        """Which result it is, to look it up by: two objects may mean the same one."""
        return id(self.call), self.port


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WeightRef(Connection):
    """A weight that another use of a layer owns, to be read here too."""

    call: LayerCall
    name: str


def weight_of(result: Connection, name: str = "weight") -> WeightRef:
    """A weight of the layer that made `result`, to be shared with another layer.

    Args:
        result: what the layer gave.
        name: the weight's name in it; of a layer made of layers with the place, such
            as `"embedding.weight"`.

    Raises:
        TypeError: it did not come from a layer.

    Example:
        >>> from frugax.models import Embedding, IOKey, Linear, Model
        >>> tokens = IOKey("tokens", shape=("batch", 16), dtype="int32")
        >>> vectors = Embedding(vocabulary=100, dimension=8)(tokens)
        >>> tied = Linear(100, bias=False)(vectors, weight=weight_of(vectors))
        >>> model = Model.create(output=tied)
    """
    if not isinstance(result, LayerOutput):
        raise TypeError(
            f"weight_of takes what a layer gave, got {type(result).__name__}."
        )
    return WeightRef(result.call, name)


def hash_key(value: Any) -> Any:
    """Something to compare and look up by: 1, 1.0 and True are three values."""
    if isinstance(value, tuple):
        return (tuple, *map(hash_key, value))
    if isinstance(value, float):
        return (float, value.hex())  # tells 0.0 from -0.0, and knows one NaN
    if isinstance(value, Layer):
        return (value.name, value.structural_key())
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tobytes())
    try:
        hash(value)
    except TypeError:
        return object()  # equal to nothing
    return (type(value), value)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, (list, tuple)) else value


def _as_name(layer: Layer, port: str, value: Any) -> IOKey:
    """What a result is to be called.

    Raises:
        TypeError: it is no name.
        ValueError: it is the place of a weight.
    """
    key = IOKey(value) if isinstance(value, str) else value
    if not isinstance(key, IOKey):
        raise TypeError(
            f"{layer.title}: {port!r} comes out of the layer, so it takes a name, not "
            f"{value!r:.60}."
        )
    if key.is_weight:
        raise ValueError(
            f"{layer.title}: {port!r} cannot be called {key.name!r}; names with a dot "
            "are places of weights."
        )
    return key


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:8]) + (", ..." if len(found) > 8 else "") or "none"
