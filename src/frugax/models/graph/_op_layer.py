"""Any op of the table as a layer."""

import dataclasses
from typing import Any

import numpy as np

from frugax.models.ops import OPS, REQUIRED

from ._connection import Connection, IOKey, as_connection
from ._layer import LayerCall, LayerOutput
from ._primitive import Primitive

# How many inputs an op that takes any number of them can be wired to.
_MANY = tuple(f"input{i}" for i in range(1, 1025))


@dataclasses.dataclass(frozen=True)
class OpLayer(Primitive):
    """An op without weights; `op` makes it.

    Attributes:
        wanted: the op's name.
        attributes: its attributes, as pairs.
    """

    wanted: str
    attributes: tuple[tuple[str, Any], ...] = ()

    weight_names = frozenset()

    @property
    def op_name(self) -> str:
        return self.wanted

    @property
    def kind(self) -> str:
        return self.wanted

    @property
    def inputs(self) -> tuple[str, ...]:
        found = OPS.get(self.wanted)
        if found is None:  # a user's own; its ports are known when it is compiled
            return ("input", *_MANY[1:8])
        ports = found.inputs[1:] if found.is_random else found.inputs
        return (*ports, *_MANY) if found.variadic else ports

    @property
    def optional(self) -> frozenset[str]:
        found = OPS.get(self.wanted)
        if found is None:
            return frozenset(self.inputs[1:])
        if found.variadic:
            return frozenset(_MANY[1:])
        # A random key is made by the model where none is given.
        return found.optional | {"key"} if found.is_random else found.optional

    @property
    def outputs(self) -> tuple[str, ...]:
        found = OPS.get(self.wanted)
        return ("output",) if found is None else found.outputs

    def attrs(self) -> dict[str, Any]:
        return dict(self.attributes)

    @property
    def title(self) -> str:
        return f"{self.name!r} (op {self.wanted})" if self.name else f"op {self.wanted}"


def op(op_name: str, /, *, name: str | None = None, **attributes: Any) -> OpLayer:
    """An op of the table, or one of your own, as a layer.

    Args:
        op_name: its name: one of `frugax.models.ops.OPS`, or one that is registered
            on the backend before the model is compiled.
        name: what the layer is called.
        attributes: the op's attributes: numbers, texts, booleans, None and sequences
            of these.

    Raises:
        TypeError: an attribute is no plain value, or one that the op needs is missing.
        ValueError: the op has no such attribute.

    Example:
        >>> from frugax.models import IOKey, Model, op
        >>> x = IOKey("input", shape=("batch", 3))
        >>> model = Model.create(output=op("gelu")(x) * 2)
    """
    found = OPS.get(op_name)
    if found is not None:
        for key in attributes:
            if key not in found.attributes:
                known = ", ".join(found.attributes) or "none"
                raise ValueError(
                    f"op {op_name!r} has no attribute {key!r}; it has: {known}."
                )
        for key, default in found.attributes.items():
            if default is REQUIRED and key not in attributes:
                raise TypeError(f"op {op_name!r} needs the attribute {key!r}.")
    plain = tuple((k, to_literal(op_name, k, v)) for k, v in attributes.items())
    return OpLayer(op_name, plain, name=name)


def to_literal(op_name: str, key: str, value: Any) -> Any:
    """An attribute as a plain value: sequences as tuples, NumPy's numbers as Python's.

    Raises:
        TypeError: it is no number, text, boolean, None, or sequence of these.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(to_literal(op_name, key, v) for v in value)
    if isinstance(value, np.generic):
        return to_literal(op_name, key, value.item())
    if isinstance(value, (np.dtype, type)):
        return np.dtype(value).name
    raise TypeError(
        f"op {op_name!r}: attribute {key!r} must be a number, a text, a boolean, None "
        f"or a sequence of these, got {value!r:.80}. Arrays are inputs, not attributes."
    )


def _apply(
    op_name: str, *tensors: Any, output: IOKey | None = None, **attributes: Any
) -> LayerOutput:
    """What an op makes of connections, with a name for it if given."""
    layer = op(op_name, **attributes)
    wires = dict(zip(layer.inputs, map(as_connection, tensors), strict=False))
    names = {} if output is None else {"output": output}
    return LayerOutput(LayerCall(layer, wires, names), "output")


Connection._op = staticmethod(_apply)
