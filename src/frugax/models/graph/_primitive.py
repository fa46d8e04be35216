"""`Primitive`: the base class of layers that are one op of the table with weights."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from frugax.models.ops import ALIASES, OPS, REQUIRED

from ._connection import Connection, IOKey, as_connection
from ._layer import Layer, LayerCall, LayerOutput
from ._shape_expressions import describe_lengths, is_length, is_vector, ports_of
from ._weights import Weight

# The ports of an op that takes any number of inputs; wiring needs names for them.
_VARIADIC_PORTS = tuple(f"input{i}" for i in range(1, 1025))


@dataclasses.dataclass(frozen=True)
class Primitive(Layer):
    """One op of the table together with the weights that it reads.

    A subclass names the op and its ports, and computes the weights from the shapes of
    the ports.

    Attributes:
        op: the name of the op.
        ports: the input ports, in the order in which the op takes them.
        open_ports: the input ports that may be left open.
        weight_names: the weights; each may also be wired to an array of another layer.
        port_dtypes: dtypes of inputs that are not of the backend's dtype.
        output_ports: the output ports; an output `new_x` updates the state `x`.
    """

    op: ClassVar[str]
    ports: ClassVar[tuple[str, ...]] = ("input",)
    open_ports: ClassVar[frozenset[str]] = frozenset()
    weight_names: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})
    port_dtypes: ClassVar[Mapping[str, str]] = {}
    output_ports: ClassVar[tuple[str, ...]] = ("output",)

    @property
    def op_name(self) -> str:
        """The name of the op in the table."""
        return self.op

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.ports

    @property
    def optional(self) -> frozenset[str]:
        return self.open_ports | self.weight_names

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.output_ports

    def attrs(self) -> dict[str, Any]:
        """The attributes of the op: plain values only."""
        return {}

    def weights(self, *shapes: Any, **_: Any) -> dict[str, Weight]:
        """The arrays that the layer owns, for inputs of these shapes, one a port.

        Raises:
            ValueError: the shapes do not suit the layer.
        """
        return {}

    def inference_layer(self) -> "Layer | None":
        """The layer that replaces it at inference; None passes the first input on."""
        return self


@dataclasses.dataclass(frozen=True)
class OpLayer(Primitive):
    """An op without weights; `op` makes it.

    Attributes:
        operation: the name of the op.
        attributes: its attributes, as pairs.
    """

    operation: str
    attributes: tuple[tuple[str, Any], ...] = ()
    # Arrays whose lengths are attributes; wired when the layer is called.
    sources: tuple[tuple[str, Connection], ...] = dataclasses.field(
        default=(), kw_only=True, repr=False, compare=False
    )

    weight_names = frozenset()

    @property
    def op_name(self) -> str:
        return self.operation

    @property
    def kind(self) -> str:
        return self.operation

    @property
    def inputs(self) -> tuple[str, ...]:
        lengths = tuple(sorted(ports_of(self.attributes)))
        found = OPS.get(self.operation)
        if found is None:
            # A user's own op belongs to a backend, so its ports are not known before
            # the model is compiled; eight optional ones are enough in practice.
            return ("input", *_VARIADIC_PORTS[1:8], *lengths)
        ports = found.inputs
        if found.is_random:
            ports = ports[1:]  # the model makes the random key
        if found.variadic:
            ports = (*ports, *_VARIADIC_PORTS)
        return (*ports, *lengths)

    def __call__(self, *inputs: Any, **wires: Any) -> Any:
        found = OPS.get(self.operation)
        for name in wires:
            if found and name in found.attributes:
                raise TypeError(
                    f"op {self.operation!r}: {name!r} is not an array; write "
                    f'op("{self.operation}", {name}={wires[name]!r:.60})(...).'
                )
        if self.operation in ("concat", "stack") and len(inputs) == 1:
            # One sequence of connections, as the functions of arrays take.
            listed = inputs[0]
            if isinstance(listed, (list, tuple)) and any(
                isinstance(x, (Connection, str)) for x in listed
            ):
                inputs = tuple(listed)
        if self.sources:
            layer = dataclasses.replace(self, sources=())
            return layer(*inputs, **wires, **dict(self.sources))
        if self._splits and "output" not in wires:
            sections = self.attrs()["sections"]
            pieces = range(sections if isinstance(sections, int) else len(sections))
            return tuple(
                dataclasses.replace(
                    self, attributes=(*self.attributes, ("index", i)), name=None
                )(*inputs, **wires)
                for i in pieces
            )
        self._check_one_output()
        return super().__call__(*inputs, **wires)

    @property
    def _splits(self) -> bool:
        """Whether it gives several pieces, which a layer of one output port cannot."""
        return self.operation == "split" and self.attrs().get("index") is None

    def _check_one_output(self) -> None:
        if self._splits:
            raise ValueError(
                "op 'split' has several results, so it cannot be wired by the name "
                "'output': give `index`, or call it on a connection."
            )

    def _call_open(self) -> LayerOutput:
        self._check_one_output()
        if not self.sources:
            return super()._call_open()
        layer, wires = dataclasses.replace(self, sources=()), dict(self.sources)
        return LayerOutput(LayerCall(layer, wires, {}, by_name=True), self.outputs[0])

    @property
    def optional(self) -> frozenset[str]:
        found = OPS.get(self.operation)
        if found is None:
            return frozenset(self.inputs[1:])
        if found.variadic:
            return frozenset(_VARIADIC_PORTS[1:])
        if found.is_random:
            return found.optional | {"key"}
        return found.optional

    @property
    def outputs(self) -> tuple[str, ...]:
        found = OPS.get(self.operation)
        if found is None:
            return ("output",)
        count = self.attrs().get("results", 1)  # of ATen's operations
        if count > 1:
            return tuple(f"output{i}" for i in range(count))
        return found.outputs

    def attrs(self) -> dict[str, Any]:
        return dict(self.attributes)

    @property
    def title(self) -> str:
        if self.name:
            return f"{self.name!r} (op {self.operation})"
        return f"op {self.operation}"


def op(op_name: str, /, *, name: str | None = None, **attributes: Any) -> OpLayer:
    """An op of the table, or one of your own, as a layer.

    Args:
        op_name: the name of the op: one of `frugax.models.ops.OPS`, or one that is
            registered on the backend before the model is compiled.
        name: the name of the layer.
        **attributes: the attributes of the op: numbers, text, booleans, None and
            sequences of these.

    Raises:
        TypeError: an attribute is not a plain value, or a required one is missing.
        ValueError: the op has no such attribute.

    Example:
        >>> from frugax.models import IOKey, Model, op
        >>> x = IOKey("input", shape=("batch", 3))
        >>> model = Model.create(output=op("gelu")(x) * 2)
    """
    op_name = ALIASES.get(op_name, op_name)
    found = OPS.get(op_name)
    if found is not None:
        attributes = found.rename(attributes)
        for key in attributes:
            if key not in found.attributes:
                known = ", ".join(found.attributes) or "none"
                raise ValueError(
                    f"op {op_name!r} has no attribute {key!r}; it has: {known}."
                )
        for key, default in found.attributes.items():
            if default is REQUIRED and key not in attributes:
                raise TypeError(f"op {op_name!r} needs the attribute {key!r}.")
    sources: dict[str, Connection] = {}
    literals = tuple(
        (k, to_literal(op_name, k, describe_lengths(v, sources)))
        for k, v in attributes.items()
    )
    return OpLayer(op_name, literals, name=name, sources=tuple(sources.items()))


def to_literal(op_name: str, key: str, value: Any) -> Any:
    """Turn an attribute into a literal: sequences into tuples, dtypes into names."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(to_literal(op_name, key, v) for v in value)
    # NumPy scalars become Python numbers, whose dtype is weak in JAX: a strong float64
    # attribute would change the dtype of results.
    if isinstance(value, np.generic):
        return to_literal(op_name, key, value.item())
    if isinstance(value, (np.dtype, type)):
        return np.dtype(value).name
    raise TypeError(
        f"op {op_name!r}: attribute {key!r} must be a number, text, a boolean, None or "
        f"a sequence of these, got {value!r:.80}. Arrays are inputs, not attributes."
    )


def _apply_op(
    op_name: str, *tensors: Any, output: IOKey | None = None, **attributes: Any
) -> LayerOutput:
    """Apply an op to connections; `output` names the result."""
    layer = op(op_name, **attributes)
    wires = dict(zip(layer.inputs, map(as_connection, tensors), strict=False))
    wires |= dict(layer.sources)
    if layer.sources:
        layer = dataclasses.replace(layer, sources=())
    names = {}
    if output is not None:
        names["output"] = output
    return LayerOutput(LayerCall(layer, wires, names), "output")


def _method(name: str) -> Callable[..., Connection]:
    """The method of connections that applies an op; arguments as in an eager call."""
    found = OPS[name]

    def method(self: Connection, *args: Any, **named: Any) -> Connection:
        tensors, attributes = found.bind((self, *args), named)
        layer = op(name, **attributes)
        ports = layer.inputs if found.variadic else found.inputs
        wires = zip(ports, tensors, strict=False)
        results = layer(**{p: as_connection(t) for p, t in wires if t is not None})
        return results

    method.__name__, method.__doc__ = name, found.body.__doc__
    return method


# Set here and not imported there, since connections and the layers of ops need each
# other.
Connection._op = staticmethod(_apply_op)
Connection.is_length = property(is_length)
Connection.is_vector = property(is_vector)
for _name, _known in OPS.items():
    if not (_known.is_random or hasattr(Connection, _name)) and (
        _known.inputs or _known.variadic
    ):
        setattr(Connection, _name, _method(_name))
for _name, _alias in ALIASES.items():
    if not hasattr(Connection, _name):
        setattr(Connection, _name, getattr(Connection, _alias))
