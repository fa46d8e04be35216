"""The text of a model when printed: a tree with one line a layer."""

import dataclasses
import itertools
import re
from typing import Any

from ._connection import Connection, Constant, IOKey
from ._layer import Layer, LayerCall, LayerOutput, WeightRef


def tree(model: Any, indent: str = "") -> str:
    """List the layers of a `Model`; equal layers in a row take one line."""
    if not model.calls:
        return "Model() without layers"
    # By identity: two uses of one layer are equal as descriptions and still two places.
    names = {id(call): name for name, call in model.calls}
    ends = f"({', '.join(model.keys)} -> {', '.join(_outputs(model))})"
    lines = [f"{type(model).__name__}{ends}"]
    groups = itertools.groupby(
        model.calls, key=lambda c: _group_key(c[0], c[1], model, names)
    )
    for _, group in groups:
        (name, call), *rest = group
        if rest:
            name = f"{name} ... {rest[-1][0]} ({len(rest) + 1} times)"
        wires = ", ".join(_format_wire(w, names) for w in model.wires(call).values())
        inner = f"{indent}  "
        lines.append(f"{inner}{name}: {format_layer(call.layer, inner)} of {wires}")
    return "\n".join(lines)


def format_layer(layer: Any, indent: str = "") -> str:
    """Format a layer with its settings that are not defaults: `Linear(dimension=8)`."""
    # `Model` imports this module for its repr, so it is recognised by its attributes
    # here.
    if hasattr(layer, "calls"):
        return tree(layer, indent)
    if hasattr(layer, "operation"):
        pairs = [f"{k}={v!r}" for k, v in layer.attributes]
        return f"op({', '.join([repr(layer.operation), *pairs])})"
    settings = [
        f"{f.name}={_format_value(getattr(layer, f.name))}"
        for f in dataclasses.fields(layer)
        if f.name != "name" and getattr(layer, f.name) != f.default
    ]
    return f"{type(layer).__name__}({', '.join(settings)})"


def _format_value(value: Any) -> str:
    if isinstance(value, Layer):
        return format_layer(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return repr(value)


def _outputs(model: Any) -> tuple[str, ...]:
    try:
        return model.outputs
    except ValueError:  # the model is not finished: nothing reads some layer yet
        return ("?",)


def _group_key(name: str, call: LayerCall, model: Any, names: dict[int, str]) -> Any:
    """A key that is equal for equal layers in a row that only feed each other."""
    if hasattr(call.layer, "calls") or call.names:
        return name
    # Results of layers count as equal wherever they come from. Blocks in a row each
    # read the one before, which is a different result each time.
    outside = [
        isinstance(w, LayerOutput) or _format_wire(w, names)
        for w in model.wires(call).values()
    ]
    stem = re.sub(r"\d+$", "", name)
    ports = tuple(call.wires)
    return (stem, call.layer.structural_key(), ports, tuple(outside))


def _format_wire(wire: Connection, names: dict[int, str]) -> str:
    match wire:
        case LayerOutput(call, port):
            name = names.get(id(call), "another model")
            if port == call.layer.outputs[0]:
                return name
            return f"{name}.{port}"
        case WeightRef(call, weight):
            return f"{names.get(id(call), 'another model')}.{weight}"
        case IOKey(name):
            return name
        case Constant(value):
            return f"{value!r:.20}".split("\n")[0]
    return "?"
