"""Equal blocks in a row, found in the calls of a model."""

import collections
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from ._composite import Composite
from ._connection import Connection, Constant, IOKey
from ._graph import join
from ._layer import Layer, LayerCall, LayerOutput, hash_key
from ._model import Model
from ._primitive import Primitive

Calls = Sequence[tuple[str, LayerCall]]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Blocks that can run as one loop.

    Attributes:
        layer: what each of them is.
        port: where each takes what the one before gave.
        names: their names, first to last.
        common: one name for all: `block_*` if it is all that are called `block_`
            with a number, else `block_1-block_9*`.
    """

    layer: Layer
    port: str
    names: tuple[str, ...]
    common: str


def runs(
    model: Model, named: Calls, least: int, path: str, excluded: frozenset[str]
) -> dict[int, Run]:
    """Where runs of equal blocks start.

    A run is a chain: each block reads the one before at the same port and nobody else
    does; everything else they read is the same for all; nothing of them is named.

    Args:
        model: the model the calls are in.
        named: its calls in the order of running.
        least: how many make a run.
        path: where the model is.
        excluded: places of blocks that must not be in a run.
    """
    readers = collections.Counter(
        wire.place
        for _, call in named
        for wire in model.wires(call).values()
        if isinstance(wire, LayerOutput)
    )
    readers.update(result.place for result in model.results.values())
    found: dict[int, Run] = {}
    i = 0
    while i < len(named):
        if join(path, named[i][0]) in excluded or not is_block(named[i][1].layer):
            i += 1
            continue
        port, end = _extend(model, named, i, readers)
        for at in range(i + 1, end):
            if join(path, named[at][0]) in excluded:
                end = at
                break
        if port is not None and end - i >= max(least, 2):
            names = tuple(name for name, _ in named[i:end])
            common = _common_name(names, [name for name, _ in named])
            found[i] = Run(named[i][1].layer, port, names, common)
            i = end
        else:
            i = max(end - 1, i + 1)
    return found


def _common_name(names: Sequence[str], all_names: Sequence[str]) -> str:
    stem = re.sub(r"\d+$", "", names[0])
    alike = [n for n in all_names if re.fullmatch(re.escape(stem) + r"\d+", n)]
    return f"{stem}*" if set(alike) == set(names) else f"{names[0]}-{names[-1]}*"


def _extend(
    model: Model, named: Calls, start: int, readers: collections.Counter
) -> tuple[str | None, int]:
    """How far the chain that starts here goes, and the port that it runs through."""
    first = named[start][1]
    mark, outputs = signature(first.layer), first.layer.outputs
    port: str | None = None
    end = start + 1
    while end < len(named) and len(outputs) == 1:
        before, call = named[end - 1][1], named[end][1]
        if set(call.wires) != set(first.wires) or signature(call.layer) != mark:
            break
        wires = model.wires(call)
        place = (id(before), outputs[0])
        results = {p: w for p, w in wires.items() if isinstance(w, LayerOutput)}
        fed = [p for p, w in results.items() if w.place == place]
        if len(fed) != 1 or (port is not None and fed[0] != port):
            break
        same = all(
            _meaning(w) == _meaning(model.wires(first)[p])
            for p, w in wires.items()
            if p != fed[0]
        )
        if readers[place] != 1 or not same or before.names:
            break
        port = fed[0]
        end += 1
    return port, end


def is_block(layer: Layer) -> bool:
    """Whether a loop over it is worth it: it is made of layers, and has no state."""
    return isinstance(layer, (Composite, Model)) and not _has_state(layer)


def _has_state(layer: Layer) -> bool:
    """Whether anything inside carries state, which a loop could not hand out."""
    if isinstance(layer, Primitive):
        return any(port.startswith("new_") for port in layer.outputs)
    inner = layer.inside(layer.optional) if isinstance(layer, Composite) else layer
    assert isinstance(inner, Model)
    return any(_has_state(call.layer) for _, call in inner.calls)


def signature(layer: Layer) -> Any:
    """Something equal for layers that compute the same from equal weights."""
    if not isinstance(layer, Model):
        return layer.structural_key()
    numbers = {id(call): i for i, (_, call) in enumerate(layer.calls)}

    def of(wire: Connection) -> Any:
        if isinstance(wire, LayerOutput):
            return ("result", numbers.get(id(wire.call)), wire.port)
        return _meaning(wire)

    return tuple(
        (
            name,
            signature(call.layer),
            tuple((p, of(w)) for p, w in layer.wires(call).items()),
        )
        for name, call in layer.calls
    ) + tuple((key, of(result)) for key, result in layer.results.items())


def _meaning(wire: Connection) -> Any:
    """Something equal for wires that carry the same value."""
    match wire:
        case LayerOutput():
            return ("result", *wire.place)
        case IOKey(name, shape, dtype):
            return ("key", name, shape, dtype)
        case Constant(value):
            return ("constant", hash_key(value))
    return ("one of a kind", id(wire))
