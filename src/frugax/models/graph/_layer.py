"""`Layer`: the base class of layers; a call of one, its outputs and shared weights.

Layers are descriptions: a layer that is used twice has two sets of weights.
"""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np

from ._connection import Connection, IOKey, as_connection
from ._field_types import check_fields

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

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse unknown settings, with the name that was probably meant."""
        known = inspect.signature(cls.__init__).parameters if args or settings else {}
        # A subclass may take **settings of its own.
        is_open = any(p.kind is p.VAR_KEYWORD for p in known.values())
        for name in () if is_open else settings:
            if name not in known:
                raise TypeError(_unknown_setting(cls, name, [*known][1:]))
        places = [n for n, p in known.items() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        if known and len(args) > len(places) and not _takes_any(known):
            hint = (
                "; give a list" if any(isinstance(a, Layer) for a in args[1:]) else ""
            )
            raise TypeError(
                f"{cls.__name__} takes {_join_names(places)}, got {len(args)} settings "
                f"by position{hint}."
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Turn lists into tuples, and check the fields as their annotations say.

        A function in `Annotated` is called with the name of the field and its value.

        Raises:
            TypeError: a field is of another type.
            ValueError: a field has another value.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # Lists are not hashable, and JSON has no scalars of NumPy.
            if type(value) in (list, tuple):
                object.__setattr__(self, field.name, _as_tuple(value))
            elif isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
        check_fields(self)

    @property
    def kind(self) -> str:
        """The prefix of its name if none is given, such as `layer_norm`."""
        return re.sub(_WORD_START, "_", type(self).__name__).lower()

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

        It returns the output, or a tuple of the outputs if there are several: they are
        connections for other layers, and `model |= ...` and `model += ...` take them.
        A name among the wires is looked up in the model that the call is added to; an
        open port becomes an input of that model with the name of the port.

        Args:
            *inputs: connections, names of keys, numbers or arrays, by position.
            **wires: the same by input port, and names by output port; None leaves an
                optional port open.

        Raises:
            TypeError: there are more inputs than ports.
            ValueError: a port is unknown or wired twice.
        """
        given = self._by_port(inputs, wires)
        results = self.outputs
        names = {p: _as_name(self, p, v) for p, v in given.items() if p in results}
        ins = {p: as_connection(v) for p, v in given.items() if p not in results}
        has_names = bool(names) or any(isinstance(v, str) for v in given.values())
        is_open = bool(self.required) and not given
        call = LayerCall(self, ins, names, by_name=has_names or is_open)
        if not call.by_name:
            call.close()
        # An updated state becomes an output of the model without being wired.
        made = [
            LayerOutput(call, port) for port in results if not port.startswith("new_")
        ]
        if len(made) == 1:
            return made[0]
        return tuple(made)

    def _call_open(self) -> "LayerOutput":
        """A call with every port open, to be wired by the model that it is added to."""
        return LayerOutput(LayerCall(self, {}, {}, by_name=True), self.outputs[0])

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
        optional = self.optional  # computed at each access, from all ports
        return tuple(p for p in self.inputs if p not in optional)

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
        outputs = self.outputs
        known = {*ports, *optional, *outputs}
        for port in wires:
            if port in outputs and port in (*ports, *optional):
                raise ValueError(
                    f"{self.title} has an input and an output called {port!r}, so "
                    "wiring it by that name has two meanings: rename one of them."
                )
        for port, value in wires.items():
            if port in given:
                raise ValueError(f"{self.title}: {port!r} is wired twice.")
            if port not in known:
                takes = _join_names([*ports, *sorted(optional - set(ports))])
                raise ValueError(
                    f"{self.title} has no port {port!r}; it takes {takes} and gives "
                    f"{_join_names(outputs)}."
                )
            given[port] = value
        # None leaves an optional port open; at a required port it goes on to
        # `as_connection`, whose error explains it.
        kept = {p: v for p, v in given.items() if v is not None or p not in optional}
        return {p: kept[p] for p in (*ports, *kept) if p in kept}


@dataclasses.dataclass(slots=True, eq=False)
class LayerCall:
    """One use of a layer: its wires, and the names of its outputs.

    Attributes:
        layer: the layer.
        wires: a connection for each input port or weight that is wired.
        names: the names that the user gave to output ports.
        by_name: whether keys among the wires are looked up in a model; ports stay open
            until the call is added to it.
        owner: that model; None before the call is added, or without names.
    """

    layer: Layer
    wires: Mapping[str, Connection]
    names: Mapping[str, IOKey]
    by_name: bool = False
    owner: Layer | None = None
    _given: Mapping[str, Connection] = dataclasses.field(
        default_factory=dict, init=False
    )

    def close(
        self, owner: Layer | None = None, follows: Connection | None = None
    ) -> "LayerCall":
        """Wire open ports: the first to `follows`, the others to inputs.

        A call that belongs to a model already is copied: it is then used twice.
        """
        if self.owner is not None:
            return LayerCall(self.layer, self._given, self.names, by_name=True).close(
                owner, follows
            )
        self._given, wires = self.wires, dict(self.wires)
        inputs, required = self.layer.inputs, self.layer.required
        # A layer with an input wired already follows nothing, as its first port was
        # chosen by the user.
        if follows is not None and inputs and not any(p in wires for p in inputs):
            wires[[*required, *inputs][0]] = follows
        wires |= {p: IOKey(p) for p in required if p not in wires}
        self.wires, self.owner = wires, owner
        return self


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayerOutput(Connection):
    """The output of one use of a layer at one of its output ports."""

    call: LayerCall
    port: str

    # Not with all that leads to it: a result that two layers read would be written
    # twice, and so on, so that the text of twenty additions has a million lines.
    def __repr__(self) -> str:
        return f"<{self.port} of {self.call.layer.title}>"

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


# Before a capital that starts a word: Conv2D is conv2d, LSTMCell is lstm_cell.
_WORD_START = r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z]{2}|[a-z][A-Z])(?=[A-Z][a-z])"


# Names of settings in torch, flax and Keras, each before those here.
_OTHER_SETTINGS = """
    out_features:dimension features:dimension,channels units:dimension,hidden
    in_features:input_size out_channels:channels filters:channels
    kernel_size:kernel,window pool_size:window strides:stride p:rate dim:axis
    num_embeddings:vocabulary embedding_dim:dimension embed_dim:dimension
    num_heads:heads negative_slope:slope hidden_size:hidden num_groups:groups
    eps:epsilon use_bias:bias elementwise_affine:affine num_layers:depth beta:delta
    dilation_rate:dilation
"""


def _takes_any(known: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_POSITIONAL for p in known.values())


def _unknown_setting(cls: type[Layer], name: str, known: list[str]) -> str:
    """The error for a setting that a layer does not have."""
    # `dim` is a prefix of `dimension`, though not close by edit distance.
    close = [k for k in known if k.startswith(name)]
    for old, _, new in (pair.partition(":") for pair in _OTHER_SETTINGS.split()):
        if old == name:
            close = [k for k in new.split(",") if k in known] or close
    close = close or difflib.get_close_matches(name, known, n=1)
    hint = f"it has: {', '.join(known)}."
    if close:
        hint = f"did you mean {close[0]!r}?"
    return f"{cls.__name__} has no setting {name!r}; {hint}"


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
