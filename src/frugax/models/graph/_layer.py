"""The base class of layers, and how layers are wired.

Layers are descriptions: a layer that is used twice has two sets of weights.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ._connection import Connection, IOKey, as_connection

# Saved models name layers by class, and only classes in this registry are ever built
# from a file.
LAYERS: dict[str, type["Layer"]] = {}


@dataclasses.dataclass(frozen=True)
class Layer:
    """Base class of everything that a model is made of.

    Attributes:
        name: its name in keys and errors; its kind and a number if not given.
    """

    # compare=False: layers that differ by name only are equal blocks, and may run as
    # one loop.
    name: str | None = dataclasses.field(default=None, kw_only=True, compare=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        place = lambda c: (c.__module__, c.__qualname__)
        # A class that is defined again, as in a notebook, replaces itself. A class of
        # another module does not: a saved model could be read as something else.
        if place(LAYERS.get(cls.__name__, cls)) == place(cls):
            LAYERS[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Turn lists into tuples, so that equal layers compare equal and hash."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, _as_tuple(value))

    @property
    def kind(self) -> str:
        """The prefix of its name if none is given, such as `layer_norm`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input ports, in order."""
        raise NotImplementedError

    @property
    def optional(self) -> frozenset[str]:
        """Input ports that may be left open, and weights that may be wired."""
        return frozenset()

    @property
    def outputs(self) -> tuple[str, ...]:
        """The output ports, in order."""
        return ("output",)

    @property
    def title(self) -> str:
        """Its name in errors: the name if it has one, and the class."""
        kind = type(self).__name__
        if self.name:
            return f"{self.name!r} ({kind})"
        return kind

    def __call__(self, *inputs: Any, **wires: Any) -> Any:
        """Wire the layer.

        With connections only it returns a connection, or a tuple of connections for
        several outputs; an open port becomes an input of the model with the name of the
        port. With the name of a key among the wires, or with nothing at all, it returns
        a wired layer for `model |= ...` and `model += ...`.

        Raises:
            TypeError: there are more inputs than ports.
            ValueError: a port is unknown or wired twice.
        """
        given = self._by_port(inputs, wires)
        results = self.outputs
        names = {p: _as_name(self, p, v) for p, v in given.items() if p in results}
        ins = {p: as_connection(v) for p, v in given.items() if p not in results}
        open_ports = [p for p in self.required if p not in ins]
        by_name = any(isinstance(v, str) for v in given.values())
        if by_name or names or (open_ports and not given):
            # A name means nothing without the model that knows it, so the wiring waits
            # for `model |= ...`.
            return WiredLayer(LayerCall(self, ins, names))
        call = LayerCall(self, ins | {p: IOKey(p) for p in open_ports}, {})
        # An updated state becomes an output of the model without being wired.
        made = [
            LayerOutput(call, port) for port in results if not port.startswith("new_")
        ]
        if len(made) == 1:
            return made[0]
        return tuple(made)

    def structural_key(self) -> Any:
        """A key that is equal for layers that do the same, whatever their names are.

        Names of layers inside count, because the keys of the weights contain them.
        """
        settings = vars(self).items()
        return (type(self), *((k, hash_key(v)) for k, v in settings if k != "name"))

    def connect(self, *inputs: Any, **wires: Any) -> Any:
        """Wire the layer; the same as calling it."""
        return self(*inputs, **wires)

    @property
    def required(self) -> tuple[str, ...]:
        """The input ports that cannot be left open."""
        return tuple(p for p in self.inputs if p not in self.optional)

    def _by_port(
        self, inputs: tuple[Any, ...], wires: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Arrange arguments by port: ports in their own order, then weights."""
        ports, optional = self.inputs, self.optional
        if len(inputs) > len(ports):
            raise TypeError(
                f"{self.title} takes {len(ports)} inputs ({_join_names(ports)}), got "
                f"{len(inputs)}."
            )
        given = dict(zip(ports, inputs, strict=False))
        known = {*ports, *optional, *self.outputs}
        for port, value in wires.items():
            if port in given:
                raise ValueError(f"{self.title}: {port!r} is wired twice.")
            if port not in known:
                takes = _join_names([*ports, *sorted(optional - set(ports))])
                raise ValueError(
                    f"{self.title} has no port {port!r}; it takes {takes} and gives "
                    f"{_join_names(self.outputs)}."
                )
            given[port] = value
        # None leaves an optional port open; at a required port it goes on to
        # `as_connection`, whose error explains it.
        kept = {p: v for p, v in given.items() if v is not None or p not in optional}
        return {p: kept[p] for p in (*ports, *kept) if p in kept}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LayerCall:
    """One use of a layer: its wires, and the names of its outputs.

    Attributes:
        layer: the layer.
        wires: a connection for each input port or weight that is wired.
        names: the names that the user gave to output ports.
        owner: the model whose keys the wires name; None if the wires contain
            connections only.
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
    """The output of one use of a layer at one of its output ports."""

    call: LayerCall
    port: str

    @property
    def place(self) -> tuple[int, str]:
        """A key to look the output up by: two objects may stand for the same one."""
        # The identity of the call: equal calls at two places are two results.
        return id(self.call), self.port


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WeightRef(Connection):
    """A weight that another use of a layer owns, shared with the reader."""

    call: LayerCall
    name: str


def weight_of(result: Connection, name: str = "weight") -> WeightRef:
    """A weight of the layer that returned `result`, to be shared with another layer.

    Args:
        result: an output of the layer.
        name: the name of the weight in the layer; for a layer made of layers its path,
            such as `"embedding.weight"`.

    Raises:
        TypeError: `result` is not the output of a layer.

    Example:
        >>> from frugax.models import Embedding, IOKey, Linear, Model
        >>> tokens = IOKey("tokens", shape=("batch", 16), dtype="int32")
        >>> vectors = Embedding(vocabulary=100, dimension=8)(tokens)
        >>> tied = Linear(100, bias=False)(vectors, weight=weight_of(vectors))
        >>> model = Model.create(output=tied)
    """
    if not isinstance(result, LayerOutput):
        raise TypeError(
            f"weight_of takes the output of a layer, got {type(result).__name__}."
        )
    return WeightRef(result.call, name)


def hash_key(value: Any) -> Any:
    """A key to compare and look values up by: 1, 1.0 and True are three values."""
    if isinstance(value, tuple):
        return (tuple, *map(hash_key, value))
    if isinstance(value, float):
        # Unlike ==, the text tells 0.0 from -0.0, and NaN equals itself.
        return (float, value.hex())
    if isinstance(value, Layer):
        return (value.name, value.structural_key())
    # The bytes, since == of arrays is elementwise and NaN differs from itself.
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tobytes())
    try:
        hash(value)
    except TypeError:
        return object()  # unhashable values are equal to nothing
    return (type(value), value)


def _as_tuple(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_as_tuple, value))
    return value


def _as_name(layer: Layer, port: str, value: Any) -> IOKey:
    """The name that was given to an output port."""
    key = value
    if isinstance(value, str):
        key = IOKey(value)
    if not isinstance(key, IOKey):
        raise TypeError(
            f"{layer.title}: {port!r} is an output, so it takes a name, got "
            f"{value!r:.60}."
        )
    if key.is_weight:
        raise ValueError(
            f"{layer.title}: {port!r} cannot be called {key.name!r}; names with a dot "
            "are paths of weights."
        )
    return key


def _join_names(names: Iterable[str]) -> str:
    found = list(names)
    if len(found) > 8:
        found[8:] = ["..."]
    return ", ".join(found) or "none"
