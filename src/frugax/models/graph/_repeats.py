"""Equal blocks in a row, found in the calls of a model."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ._connection import Connection, Constant, IOKey, Result
from ._layer import Call, Layer
from ._model import Model


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Blocks that can run as one loop.

    Attributes:
        layer: what each of them is.
        port: where each takes what the one before gave.
        names: their names, first to last.
        count: how many.
    """

    layer: Layer
    port: str
    names: tuple[str, ...]
    count: int


def runs(
    model: Model, named: Sequence[tuple[str, Call]], scan_from: int
) -> dict[int, Run]:
    """Where runs of at least `scan_from` equal blocks start.

    A run is a chain: each block reads the one before at the same port and nobody else
    does; everything else they read is the same for all; nothing of them is named.

    Args:
        model: the model the calls are in.
        named: its calls in the order of running.
        scan_from: how many make a run.
    """
    readers: dict[tuple[int, str], int] = {}
    for _, call in named:
        for wire in map(model.resolve, call.wires.values()):
            if isinstance(wire, Result):
                key = (id(wire.call), wire.port)
                readers[key] = readers.get(key, 0) + 1
    for result in model.results.values():
        key = (id(result.call), result.port)
        readers[key] = readers.get(key, 0) + 1
    found: dict[int, Run] = {}
    i = 0
    while i < len(named):
        port, end = _extend(model, named, i, readers)
        count = end - i
        if port is not None and count >= scan_from:
            names = tuple(name for name, _ in named[i:end])
            found[i] = Run(named[i][1].layer, port, names, count)
            i = end
        else:
            i += max(count - 1, 1)
    return found


def _extend(
    model: Model,
    named: Sequence[tuple[str, Call]],
    start: int,
    readers: dict[tuple[int, str], int],
) -> tuple[str | None, int]:
    first = named[start][1]
    if len(first.layer.outputs) != 1 or not is_block(first.layer):
        return None, start + 1
    mark = signature(first.layer)
    port: str | None = None
    end = start + 1
    while end < len(named):
        before, call = named[end - 1][1], named[end][1]
        if signature(call.layer) != mark or set(call.wires) != set(first.wires):
            break
        fed = [
            p
            for p, w in call.wires.items()
            if isinstance(r := model.resolve(w), Result) and r.call is before
        ]
        if len(fed) != 1 or (port is not None and fed[0] != port):
            break
        alone = readers.get((id(before), before.layer.outputs[0])) == 1
        same = all(
            _means_same(model.resolve(w), model.resolve(first.wires[p]))
            for p, w in call.wires.items()
            if p != fed[0]
        )
        if not alone or not same or before.names:
            break
        port = fed[0]
        end += 1
    return port, end


def is_block(layer: Layer) -> bool:
    """Whether a loop over the layer is worth it: it is made of layers."""
    from ._layer import Composite

    return isinstance(layer, (Composite, Model)) and not has_state(layer)


def has_state(layer: Layer) -> bool:
    """Whether anything inside carries state, which a loop could not hand out."""
    from ._layer import Composite, Primitive

    if isinstance(layer, Primitive):
        return any(port.startswith("new_") for port in layer.outputs)
    inner = layer.inside(layer.optional) if isinstance(layer, Composite) else layer
    assert isinstance(inner, Model)
    return any(has_state(call.layer) for _, call in inner.calls)


def signature(layer: Layer) -> Any:
    """Something equal for layers that compute the same from equal weights."""
    if not isinstance(layer, Model):
        return layer
    numbers = {id(call): i for i, (_, call) in enumerate(layer.calls)}

    def of(wire: Connection) -> Any:
        wire = layer.resolve(wire)
        if isinstance(wire, Result):
            return ("result", numbers.get(id(wire.call)), wire.port)
        if isinstance(wire, IOKey):
            return ("key", wire.name, wire.shape, wire.dtype)
        if isinstance(wire, Constant) and not hasattr(wire.value, "shape"):
            return ("constant", type(wire.value), wire.value)
        return ("one of a kind", id(wire))

    return tuple(
        (name, signature(call.layer), tuple((p, of(w)) for p, w in call.wires.items()))
        for name, call in layer.calls
    ) + tuple((key, of(result)) for key, result in layer.results.items())


def _means_same(one: Connection, other: Connection) -> bool:
    if isinstance(one, Result) and isinstance(other, Result):
        return one.call is other.call and one.port == other.port
    if isinstance(one, IOKey) and isinstance(other, IOKey):
        return one.name == other.name
    if isinstance(one, Constant) and isinstance(other, Constant):
        return one.value is other.value or (
            type(one.value) is type(other.value)
            and not hasattr(one.value, "shape")
            and one.value == other.value
        )
    return one is other
