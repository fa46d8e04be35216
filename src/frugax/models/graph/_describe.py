"""A model as a short text: its layers, what each reads, models inside further in."""

import dataclasses
import itertools
import re
from typing import Any

from ._connection import Connection, Constant, IOKey
from ._layer import Layer, LayerCall, LayerOutput, WeightRef


def tree(model: Any, indent: str = "") -> str:
    """The layers of a `Model`, a line each; equal ones in a row take one line.

    Args:
        model: the model.
        indent: what its lines start with.
    """
    if not model.calls:
        return "Model() without layers"
    names = {id(call): name for name, call in model.calls}
    ends = f"({', '.join(model.keys)} -> {', '.join(_outputs(model))})"
    lines = [f"{type(model).__name__}{ends}"]
    alike = itertools.groupby(
        model.calls, key=lambda c: _likeness(c[0], c[1], model, names)
    )
    for _, group in alike:
        (name, call), *rest = group
        if rest:
            name = f"{name} ... {rest[-1][0]} ({len(rest) + 1} times)"
        read = ", ".join(_said(w, names) for w in model.wires(call).values())
        inside = f"{indent}  "
        lines.append(f"{inside}{name}: {settings(call.layer, inside)} of {read}")
    return "\n".join(lines)


def settings(layer: Any, indent: str = "") -> str:
    """A layer with what differs from its defaults, such as `Linear(dimension=8)`."""
    if hasattr(layer, "calls"):
        return tree(layer, indent)
    if hasattr(layer, "wanted"):
        pairs = [f"{k}={v!r}" for k, v in layer.attributes]
        return f"op({', '.join([repr(layer.wanted), *pairs])})"
    said = [
        f"{f.name}={_value(getattr(layer, f.name))}"
        for f in dataclasses.fields(layer)
        if f.name != "name" and getattr(layer, f.name) != f.default
    ]
    return f"{type(layer).__name__}({', '.join(said)})"


def _value(value: Any) -> str:
    if isinstance(value, Layer):
        return settings(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


def _outputs(model: Any) -> tuple[str, ...]:
    try:
        return model.outputs
    except ValueError:  # not finished yet: something goes nowhere
        return ("?",)


def _likeness(name: str, call: LayerCall, model: Any, names: dict[int, str]) -> Any:
    """Equal for layers in a row that are the same and only feed each other."""
    if hasattr(call.layer, "calls") or call.names:
        return name
    wires = model.wires(call).values()
    fed = ["" if isinstance(w, LayerOutput) else _said(w, names) for w in wires]
    stem = re.sub(r"\d+$", "", name)
    return (stem, call.layer.structural_key(), tuple(call.wires), tuple(fed))


def _said(wire: Connection, names: dict[int, str]) -> str:
    match wire:
        case LayerOutput(call, port):
            port = "" if port == call.layer.outputs[0] else f".{port}"
            return f"{names.get(id(call), 'another model')}{port}"
        case WeightRef(call, weight):
            return f"{names.get(id(call), 'another model')}.{weight}"
        case IOKey(name):
            return name
        case Constant(value):
            return f"{value!r:.20}".split("\n")[0]
    return "?"
