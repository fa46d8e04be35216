"""Find runs of equal consecutive blocks in a model, which can compile as one loop."""

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
        layer: the layer that each block is.
        port: the input port that reads the block before.
        names: the names of the blocks, first to last.
        common: one name for all: `block_*` if the run has all layers that are called
            `block_` with a number, else `block_1-block_9*`.
    """

    layer: Layer
    port: str
    names: tuple[str, ...]
    common: str


def find_runs(
    model: Model, named: Calls, least: int, path: str, excluded: frozenset[str]
) -> dict[int, Run]:
    """Find runs of equal blocks, by the number of their first call.

    A run is a chain: each block is the only reader of the block before, at the same
    port; everything else that the blocks read is the same for all; and no output in
    the chain has a name.
    """
    readers = collections.Counter(
        wire.place
        for _, call in named
        for wire in model.wires(call).values()
        if isinstance(wire, LayerOutput)
    )
    # An output of the model is read from outside. A loop returns the last block's
    # result only.
    readers.update(result.place for result in model.results.values())
    found: dict[int, Run] = {}
    i = 0
    while i < len(named):
        if join(path, named[i][0]) in excluded or not is_block(named[i][1].layer):
            i += 1
            continue
        # Excluded blocks cut a chain: both sides may still be runs.
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
            # The last block of a chain that is too short may start the next one.
            i = max(end - 1, i + 1)
    return found


def _common_name(names: Sequence[str], all_names: Sequence[str]) -> str:
    stem = re.sub(r"\d+$", "", names[0])
    alike = [n for n in all_names if re.fullmatch(re.escape(stem) + r"\d+", n)]
    # Keys of weights must be unique: a second run, or a block that is left out, would
    # otherwise have the same common name.
    if set(alike) == set(names):
        return f"{stem}*"
    return f"{names[0]}-{names[-1]}*"


def _extend(
    model: Model, named: Calls, start: int, readers: collections.Counter
) -> tuple[str | None, int]:
    """The port that the chain from here runs through, and the number of its end."""
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
        # A block that reads the one before at two ports, or at another port than its
        # predecessor did, would need another loop body.
        if len(fed) != 1 or (port is not None and fed[0] != port):
            break
        same = all(
            _wire_key(w) == _wire_key(model.wires(first)[p])
            for p, w in wires.items()
            if p != fed[0]
        )
        if readers[place] != 1 or not same or before.names:
            break
        port = fed[0]
        end += 1
    return port, end


def is_block(layer: Layer) -> bool:
    """Whether a layer can be a block: it is made of layers, and carries no state."""
    return isinstance(layer, (Composite, Model)) and not _has_state(layer)


def _has_state(layer: Layer) -> bool:
    """Whether a layer inside updates state, which a loop could not return."""
    if isinstance(layer, Primitive):
        return any(port.startswith("new_") for port in layer.outputs)
    inner = layer
    if isinstance(layer, Composite):
        inner = layer.expand(layer.optional)
    assert isinstance(inner, Model)
    return any(_has_state(call.layer) for _, call in inner.calls)


def signature(layer: Layer) -> Any:
    """A key that is equal for layers that compute the same from equal weights."""
    if not isinstance(layer, Model):
        return layer.structural_key()
    # Calls by their number in the model, since the identities of two equal models
    # differ.
    numbers = {id(call): i for i, (_, call) in enumerate(layer.calls)}

    def wire_key(wire: Connection) -> Any:
        if isinstance(wire, LayerOutput):
            return ("result", numbers.get(id(wire.call)), wire.port)
        return _wire_key(wire)

    return tuple(
        (
            name,
            signature(call.layer),
            tuple((p, wire_key(w)) for p, w in layer.wires(call).items()),
        )
        for name, call in layer.calls
    ) + tuple((key, wire_key(result)) for key, result in layer.results.items())


def _wire_key(wire: Connection) -> Any:
    """A key that is equal for wires that carry the same value."""
    match wire:
        case LayerOutput():
            return ("result", *wire.place)
        case IOKey(name, shape, dtype):
            return ("key", name, shape, dtype)
        case Constant(value):
            return ("constant", hash_key(value))
    # An unknown kind of wire is equal to itself only, which at worst misses a loop.
    return ("unique", id(wire))
