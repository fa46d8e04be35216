"""What a layer is, how it is wired, and the weights it owns.

Start at `Layer`; `Primitive` is one op with weights, `Composite` is made of layers.
Layers are descriptions: using one twice gives two sets of weights.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ._connection import Connection, IOKey, Result, Shape, as_connection


@dataclasses.dataclass(frozen=True, slots=True)
class Fill:
    """Start with one value everywhere."""

    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class Normal:
    """Start with normal random numbers of mean 0 and this standard deviation."""

    std: float


@dataclasses.dataclass(frozen=True, slots=True)
class Uniform:
    """Start with uniform random numbers in [low, high)."""

    low: float
    high: float


Init = Fill | Normal | Uniform


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """One array that a layer owns.

    Attributes:
        shape: its shape, all lengths known.
        init: how it starts.
        kind: `"param"` is trained; `"state"` goes in with the data and comes out
            renewed, such as the running mean of a batch norm.
    """

    shape: tuple[int, ...]
    init: Init
    kind: Literal["param", "state"] = "param"


def known(length: Any) -> int:
    """A dimension that must be a number, because a weight's shape depends on it.

    Raises:
        ValueError: it is free.
    """
    if isinstance(length, int):
        return length
    raise ValueError(
        f"a weight's shape depends on the dimension {length}, which is free: say its "
        "length in `shapes`"
    )


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """One use of a layer: what goes in at each port, and what its results are called.

    Attributes:
        layer: the layer.
        wires: a connection for each input port or weight that is wired.
        names: the names that the user gave to output ports.
    """

    layer: "Layer"
    wires: dict[str, Connection]
    names: dict[str, IOKey]


@dataclasses.dataclass(frozen=True, slots=True)
class Wired:
    """A layer with its ports named, ready for `model |= ...`."""

    call: Call


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
        LAYERS.setdefault(cls.__name__, cls)

    def __post_init__(self) -> None:
        """Make lists tuples, so that equal layers can be found."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))

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

    def __call__(self, *inputs: Any, **wires: Any) -> Any:
        """Wire the layer.

        With connections only, it gives a connection for what comes out (a tuple if
        that is several). With a key's name among the wires, or nothing at all, it
        gives something for `model |= ...` and `model += ...`.

        Args:
            inputs: what goes in, by place.
            wires: what goes in by port, and names for what comes out.

        Raises:
            TypeError: there are more inputs than ports.
            ValueError: a port is unknown or wired twice.
        """
        given: dict[str, Any] = {}
        if len(inputs) > len(self.inputs):
            raise TypeError(
                f"{self.title} takes {len(self.inputs)} inputs "
                f"({', '.join(self.inputs)}), got {len(inputs)}."
            )
        given.update(zip(self.inputs, inputs, strict=False))
        for port, value in wires.items():
            if port in given:
                raise ValueError(f"{self.title}: {port!r} is wired twice.")
            given[port] = value
        ins = {p: as_connection(v) for p, v in given.items() if p not in self.outputs}
        names = {p: _as_name(self, p, v) for p, v in given.items() if p in self.outputs}
        allowed = {*self.inputs, *self.optional}
        for port in ins:
            if port not in allowed:
                raise ValueError(
                    f"{self.title} has no port {port!r}; it has "
                    f"{', '.join([*self.inputs, *sorted(self.optional)])} and gives "
                    f"{', '.join(self.outputs)}."
                )
        call = Call(self, ins, names)
        by_name = any(isinstance(v, str) for v in given.values())
        if by_name or names or not given:
            return Wired(call)
        results = tuple(Result(call, port) for port in self.outputs)
        return results[0] if len(results) == 1 else results

    connect = __call__

    @property
    def title(self) -> str:
        """What an error calls it: its name if it has one, and its class."""
        kind = type(self).__name__
        return f"{self.name!r} ({kind})" if self.name else kind


def _as_name(layer: Layer, port: str, value: Any) -> IOKey:
    if isinstance(value, str):
        return IOKey(value)
    if isinstance(value, IOKey):
        return value
    raise TypeError(
        f"{layer.title}: {port!r} comes out of the layer, so it takes a name, not "
        f"{value!r:.60}."
    )


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

    def weights(self, *shapes: Shape) -> dict[str, Weight]:
        """The arrays it owns, for inputs of these shapes (one for each port).

        Raises:
            ValueError: the shapes do not suit the layer.
        """
        return {}

    def at_inference(self) -> "Layer | None":
        """What takes its place when the model only infers; None: its first input."""
        return self


@dataclasses.dataclass(frozen=True)
class Composite(Layer):
    """A layer made of layers: a subclass writes `build`.

    The arguments of `build` are its input ports; it returns one connection, or a dict
    of connections for several outputs.
    """

    def build(self, *inputs: Connection) -> Connection | dict[str, Connection]:
        """Make the layers inside, from connections for the ports."""
        raise NotImplementedError

    def ports(self) -> dict[str, IOKey]:
        """What is known of the inputs from the layer's own settings."""
        return {}

    def inside(self, open_ports: frozenset[str] = frozenset()) -> Any:
        """The model inside, with some optional ports left open; built once each."""
        return _inside(self, open_ports)

    @property
    def inputs(self) -> tuple[str, ...]:
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(p.name for p in parameters)

    @property
    def optional(self) -> frozenset[str]:
        parameters = inspect.signature(self.build).parameters.values()
        return frozenset(p.name for p in parameters if p.default is None)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.inside(self.optional).outputs


@functools.lru_cache(maxsize=512)
def _inside(layer: Composite, open_ports: frozenset[str]) -> Any:
    from ._model import Model  # a model is a layer too

    about = layer.ports()
    given = {
        p: None if p in open_ports else about.get(p, IOKey(p)) for p in layer.inputs
    }
    made = layer.build(**given)  # pyright: ignore[reportCallIssue]
    outputs = made if isinstance(made, Mapping) else {"output": made}
    return Model.create(**outputs)
