"""Graph passes: remove unused ops, fix inputs, merge equal ops, fold constants.

XLA finds equal operations and constants by itself. Finding them here shortens the
program that JAX traces, and is the only optimisation of eager torch.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .graph import GraphNode, IOKey, LoopNode, ModelGraph, OpNode, Spec, hash_key, run
from .ops import Op

# Larger results are computed in every run: as constants they would make the program
# long, and slow to compile.
FOLDED_BYTES = 2**20


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
        # An updated state becomes an output in `infer`, which may run later.
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
        if wanted is not None and not _fits_shape(shape, wanted):
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


def merge_equal(graph: ModelGraph) -> ModelGraph:
    """Merge nodes that apply the same op to the same values.

    Equal layers differ by their own weights, and random draws by their keys, so they
    are never merged by mistake.
    """
    replaced: dict[str, str] = {}
    first: dict[Any, GraphNode] = {}
    nodes: list[GraphNode] = []
    for node in _map_loops(graph.nodes, merge_equal):
        inputs = {p: replaced.get(k, k) for p, k in node.inputs.items()}
        node = dataclasses.replace(node, inputs=inputs)
        if isinstance(node, OpNode):
            arguments = tuple(inputs.items())
            key = (node.op, hash_key(node.attrs), arguments, len(node.outputs))
            before = first.setdefault(key, node)
            if before is not node:
                replaced.update(zip(node.outputs, before.outputs, strict=True))
                continue
        nodes.append(node)
    outputs = {name: replaced.get(k, k) for name, k in graph.outputs.items()}
    return dataclasses.replace(graph, nodes=tuple(nodes), outputs=outputs)


def fold_constants(graph: ModelGraph, xp: Any, find: Callable[[str], Op]) -> ModelGraph:
    """Compute values that depend on constants only, unless they are large."""
    constants = dict(graph.constants)
    nodes: list[GraphNode] = []
    for node in _map_loops(graph.nodes, lambda body: fold_constants(body, xp, find)):
        is_fixed = isinstance(node, OpNode) and all(
            key in constants for key in node.inputs.values()
        )
        if is_fixed and all(_is_small(graph.specs[key]) for key in node.outputs):
            outputs = {key: key for key in node.outputs}
            constants |= run(ModelGraph({}, constants, (node,), outputs), {}, xp, find)
        else:
            nodes.append(node)
    return dataclasses.replace(graph, nodes=tuple(nodes), constants=constants)


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


def _is_small(spec: Spec) -> bool:
    known = all(isinstance(length, int) for length in spec.shape)
    return known and math.prod(spec.shape) * spec.dtype.itemsize <= FOLDED_BYTES


def _fits_shape(shape: tuple[int, ...], known: Sequence[Any]) -> bool:
    return len(shape) == len(known) and all(
        not isinstance(expected, int) or length == expected
        for length, expected in zip(shape, known, strict=True)
    )
