"""Leave outputs of a program out, and fix inputs and weights to values."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .graph import GraphNode, IOKey, LoopNode, ModelGraph, fits_shape


def prune(graph: ModelGraph, discard: Iterable[str] = ()) -> ModelGraph:
    """Remove outputs and every node that only they need."""
    unwanted = set(discard)
    unknown = sorted(unwanted - set(graph.outputs))
    if unknown:
        raise ValueError(
            f"discard_keys: there is no output {unknown[0]!r}; there are: "
            f"{', '.join(graph.outputs)}."
        )
    outputs = {n: k for n, k in graph.outputs.items() if n not in unwanted}
    if not outputs:
        raise ValueError(
            f"discard_keys leaves no output; there are: {', '.join(graph.outputs)}."
        )
    needed = set(outputs.values())
    nodes: list[GraphNode] = []
    for node in reversed(graph.nodes):
        # An updated state becomes an output in `record`, which runs later.
        updates_state = any("/new_" in key for key in node.outputs)
        if updates_state or needed & set(node.outputs):
            nodes.append(node)
            needed |= set(node.inputs.values())
            needed |= (
                set(node.stacked.values()) if isinstance(node, LoopNode) else set()
            )
    return dataclasses.replace(
        graph,
        inputs={k: v for k, v in graph.inputs.items() if k in needed},
        constants={k: v for k, v in graph.constants.items() if k in needed},
        named_weights={k: v for k, v in graph.named_weights.items() if k in needed},
        weights={k: v for k, v in graph.weights.items() if k in needed},
        nodes=tuple(reversed(nodes)),
        outputs=outputs,
    )


def bind(
    graph: ModelGraph, values: Mapping[str, Any], array: Callable[..., Any]
) -> ModelGraph:
    """Fix inputs or weights to values; constants become arrays of the backend."""
    fixed: dict[str, Any] = {}
    for key, value in values.items():
        known = {**graph.named_weights, **graph.inputs}.get(key, IOKey(key))
        dtype = known.dtype
        if dtype == "key":
            dtype = None
        fixed[key] = array(value, dtype=dtype)
        shape = tuple(fixed[key].shape)
        wanted = known.known_shape
        if not fits_shape(shape, wanted):
            raise ValueError(
                f"constant_keys: {key!r} must have shape {wanted}, got {shape}."
            )
    constants = dict(graph.constants)
    for key, value in constants.items():
        if hasattr(value, "shape"):
            constants[key] = array(value)
    return dataclasses.replace(
        graph,
        inputs={k: v for k, v in graph.inputs.items() if k not in fixed},
        named_weights={k: v for k, v in graph.named_weights.items() if k not in fixed},
        constants=constants | fixed,
        nodes=_map_loops(graph.nodes, lambda body: bind(body, {}, array)),
    )


def check_bound(graph: ModelGraph, keys: Iterable[str]) -> None:
    """Check that every fixed value is read."""
    read = {key for node in graph.nodes for key in node.inputs.values()}
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            read |= set(node.stacked.values())
    for key in keys:
        if key not in read and key not in graph.outputs.values():
            known = sorted({*graph.inputs, *graph.weights})
            raise ValueError(
                f"constant_keys: there is no {key!r}; there are: "
                f"{', '.join(known[:12])}."
            )


def _map_loops(
    nodes: Iterable[GraphNode], change: Callable[[ModelGraph], ModelGraph]
) -> tuple[GraphNode, ...]:
    """The nodes, with the bodies of loops changed."""
    changed: list[GraphNode] = []
    for node in nodes:
        if isinstance(node, LoopNode):
            node = dataclasses.replace(node, body=change(node.body))
        changed.append(node)
    return tuple(changed)
