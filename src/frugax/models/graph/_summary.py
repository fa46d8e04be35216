"""The summary table of a model: one line a layer, with shapes, weights and flops."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frugax.budget import format_bytes, table

from ._graph import GraphNode, LoopNode, ModelGraph, OpNode
from ._layer import Layer
from ._primitive import OpLayer
from ._weights import Weight

# The floating-point operations of one node for these specs; None if they are unknown.
Flops = Callable[[OpNode, Mapping[str, Any]], int | None]


@dataclasses.dataclass(slots=True)
class _Row:
    layer: str
    kind: str
    output: str
    weights: list[str]
    parameters: int
    size_bytes: int
    flops: int | None

    def cells(self) -> list[str]:
        flops = "?"
        if self.flops is not None:
            flops = f"{self.flops:,}"
        return [
            self.layer,
            self.kind,
            self.output,
            ", ".join(self.weights),
            f"{self.parameters:,}",
            format_bytes(self.size_bytes),
            flops,
        ]


def summary(graph: ModelGraph, plain: ModelGraph | None, flops: Flops) -> str:
    """Format the table; equal blocks that run as one loop take one line."""
    rows: dict[str, _Row] = {}
    # Flops are counted on a program with numbers for all lengths, because the trace of
    # a symbolic one has no numbers to multiply.
    counted: Sequence[GraphNode | None] = [None] * len(graph.nodes)
    if plain is not None:
        counted = plain.nodes
    for node, other in zip(graph.nodes, counted, strict=True):
        row = _row(node, other, graph, plain, flops)
        before = rows.get(node.path)
        if before is not None:  # the node before derived a random key for the layer
            row.flops = _sum([before.flops, row.flops])
        rows[node.path] = row
    lines = list(rows.values())
    total = _Row(
        "total",
        "",
        ", ".join(f"{n} {graph.specs[k]}" for n, k in graph.outputs.items()),
        [],
        sum(row.parameters for row in lines),
        sum(row.size_bytes for row in lines),
        _sum([row.flops for row in lines]),
    )
    head = ["layer", "kind", "output", "weights", "parameters", "bytes", "flops"]
    text = table(head, [row.cells() for row in [*lines, total]])
    free = any(not isinstance(d, int) for s in graph.specs.values() for d in s.shape)
    if free:
        text += "\nflops: forward only, each free dimension counted as 1"
    return text


def _row(
    node: GraphNode,
    other: GraphNode | None,
    graph: ModelGraph,
    plain: ModelGraph | None,
    flops: Flops,
) -> _Row:
    keys = [k for k in node.inputs.values() if k in graph.weights]
    # A shared weight counts where it is owned, so that the total counts it once.
    own = [k for k in keys if k.rpartition(".")[0] == node.path]
    names = []
    for key in keys:
        if key in own:
            names.append(f"{key.rpartition('.')[2]} {_shape(graph.weights[key])}")
        else:
            names.append(f"{key} shared")
    label, kind = node.path or "-", _kind(node.layer)
    if isinstance(node, LoopNode):
        own = [k for k in node.stacked.values() if k in graph.weights]
        if own:
            names.append(f"{len(own)} arrays")
        label = f"{node.path} x{len(node.names)}"
    numbers = {k: math.prod(graph.weights[k].shape) for k in own}
    return _Row(
        label,
        kind,
        str(graph.specs[node.outputs[0]]),
        names,
        sum(numbers.values()),
        sum(n * graph.specs[k].dtype.itemsize for k, n in numbers.items()),
        _count_flops(other, plain, flops),
    )


def _count_flops(
    node: GraphNode | None, plain: ModelGraph | None, flops: Flops
) -> int | None:
    if node is None or plain is None:
        return None
    if isinstance(node, OpNode):
        known: dict[str, Any] = {**plain.specs, **plain.constants}
        return flops(node, known)
    block = _sum([_count_flops(n, node.body, flops) for n in node.body.nodes])
    if block is None:
        return None
    return block * len(node.names)


def _kind(layer: Layer) -> str:
    if isinstance(layer, OpLayer):
        return f"op {layer.operation}"
    return type(layer).__name__


def _shape(weight: Weight) -> str:
    return f"({', '.join(map(str, weight.shape))})"


def _sum(numbers: list[int | None]) -> int | None:
    known = [n for n in numbers if n is not None]
    if len(known) < len(numbers):
        return None  # a sum of some would look like the whole
    return sum(known)
