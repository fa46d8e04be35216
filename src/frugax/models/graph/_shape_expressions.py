"""Store shape arithmetic such as `x.shape[0] * 2` in an op's attributes; compute it.

`y.reshape(x.shape[0], -1)` wires x to an extra port of the op, and writes its attribute
as `(("$at", ("$shape", "shape_of_0"), 0), -1)`: a literal, which can be saved.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ._connection import Connection, Constant
from ._layer import LayerOutput

PORT = "shape_of_"
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "negative": operator.neg,
}


def is_length(wire: Connection) -> bool:
    """Whether a connection is computed from shapes and constants alone."""
    try:
        describe_lengths(wire, {})
    except TypeError:
        return False
    return True


def is_vector(wire: Connection) -> bool:
    """Whether a connection is a whole shape, computed from shapes alone."""
    layer = wire.call.layer if isinstance(wire, LayerOutput) else None
    # Every sum asks, so a long chain of them is not followed.
    if getattr(layer, "operation", None) not in ("shape", "getitem", "concat"):
        return False
    try:
        head, *rest = describe_lengths(wire, {})
    except TypeError:  # it depends on data
        return False
    if head == "$at":
        return isinstance(rest[1], tuple) and isinstance(rest[1][0], tuple)
    return head in ("$shape", "$joined")


def describe_lengths(value: Any, ports: dict[str, Connection]) -> Any:
    """Write an attribute without connections; the arrays are added to `ports`.

    Raises:
        TypeError: a connection depends on more than shapes.
    """
    if isinstance(value, (list, tuple)):
        return tuple(describe_lengths(v, ports) for v in value)
    if not isinstance(value, Connection):
        return value
    if isinstance(value, Constant) and isinstance(value.value, int):
        return value.value
    if isinstance(value, Constant) and getattr(value.value, "ndim", 0) == 1:
        return tuple(value.value.tolist())
    if isinstance(value, LayerOutput):
        wires, attrs = (
            value.call.wires,
            dict(getattr(value.call.layer, "attributes", ())),
        )
        op = getattr(value.call.layer, "operation", None)
        if op in ("shape", "size"):
            array = wires["input"]
            port = next((p for p, w in ports.items() if w is array), None)
            if port is None:
                port = f"{PORT}{len(ports)}"
                ports[port] = array
            whole = ("$shape", port)
            if op == "shape":
                return whole
            axes = attrs.get("axis")
            if isinstance(axes, int):
                return ("$at", whole, axes)
            if axes is None:
                return ("$product", whole)
            return ("$product", tuple(("$at", whole, axis) for axis in axes))
        if op == "getitem":
            return ("$at", describe_lengths(wires["input"], ports), attrs["index"])
        if op == "concat":
            parts = (describe_lengths(w, ports) for w in wires.values())
            return ("$joined", *parts)
        if op in _ARITHMETIC:
            return (f"${op}", *(describe_lengths(w, ports) for w in wires.values()))
        if op == "divide":
            raise TypeError("a length is a whole number: write // in place of /.")
    raise TypeError(
        "an attribute is fixed when a model is compiled, so it may be computed from "
        f"shapes such as x.shape[0], but not from data: {value!r:.80}."
    )


def ports_of(value: Any) -> set[str]:
    """The extra ports that a described attribute reads."""
    if not isinstance(value, tuple):
        return set()
    if len(value) == 2 and value[0] == "$shape":
        return {value[1]}
    return {port for part in value for port in ports_of(part)}


def compute_lengths(value: Any, shapes: Mapping[str, tuple[Any, ...]]) -> Any:
    """A described attribute with the lengths filled in."""
    if not isinstance(value, tuple) or not value:
        return value
    head = value[0]
    if not (isinstance(head, str) and head.startswith("$")):
        parts = (compute_lengths(v, shapes) for v in value)
        return tuple(parts)
    if head == "$shape":
        return shapes[value[1]]
    if head == "$joined":
        return sum((compute_lengths(v, shapes) for v in value[1:]), ())
    if head == "$product":
        return math.prod(compute_lengths(value[1], shapes))
    if head == "$at":
        return _pick(compute_lengths(value[1], shapes), value[2])
    operands = [compute_lengths(v, shapes) for v in value[1:]]
    return _ARITHMETIC[head[1:]](*operands)


def _pick(lengths: tuple[Any, ...], index: Any) -> Any:
    """The lengths at an index: an int, or the index of `getitem`."""
    if isinstance(index, tuple):
        (index,) = index
    if isinstance(index, tuple):  # ("slice", start, stop, step)
        return lengths[slice(*index[1:])]
    return lengths[index]
