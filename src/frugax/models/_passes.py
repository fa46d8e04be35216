"""Passes over a flat program: each maps a `ModelGraph` to an equivalent one.

XLA finds equal operations and constants by itself. Finding them here makes what is
traced shorter, and is all that eager torch gets.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .graph import GraphNode, LoopNode, ModelGraph, OpNode, Spec, hash_key, run
from .ops import Op

# Larger results are computed every time: written into a program they would make it
# long, and slow to compile.
FOLDED_BYTES = 2**20


def prune(graph: ModelGraph, discard: Iterable[str] = ()) -> ModelGraph:
    """Leave out unwanted outputs and every step that only they need.

    Args:
        graph: a program, before `infer` or after.
        discard: names of outputs.

    Raises:
        ValueError: there is no such output, or none would be left.
    """
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
        # A state that is renewed is an output too, though its key is not known yet.
        renews = any("/new_" in key for key in node.outputs)
        if renews or needed & set(node.outputs):
            nodes.append(node)
            needed |= set(node.inputs.values())
            needed |= (
                set(node.stacked.values()) if isinstance(node, LoopNode) else set()
            )
    return dataclasses.replace(
        graph,
        inputs={k: v for k, v in graph.inputs.items() if k in needed},
        constants={k: v for k, v in graph.constants.items() if k in needed},
        weights={k: v for k, v in graph.weights.items() if k in needed},
        nodes=tuple(reversed(nodes)),
        outputs=outputs,
    )


def bind(
    graph: ModelGraph, values: Mapping[str, Any], array: Callable[..., Any]
) -> ModelGraph:
    """Fix inputs or weights to values; constant arrays become the backend's own.

    Args:
        graph: a program before `infer`.
        values: a value for each key; `check_bound` sees later that all are read.
        array: the backend's function that makes an array.

    Raises:
        ValueError: a value has another shape than its input.
    """
    fixed: dict[str, Any] = {}
    for key, value in values.items():
        about = graph.inputs.get(key)
        dtype = None if about is None or about.dtype == "key" else about.dtype
        fixed[key] = made = array(value, dtype=dtype)
        said = None if about is None else about.shape
        if said is not None and not _suits(tuple(made.shape), said):
            raise ValueError(
                f"constant_keys: {key!r} must have shape {said}, got "
                f"{tuple(made.shape)}."
            )
    written = {
        k: array(v) if hasattr(v, "shape") else v for k, v in graph.constants.items()
    }
    return dataclasses.replace(
        graph,
        inputs={k: v for k, v in graph.inputs.items() if k not in fixed},
        constants=written | fixed,
        nodes=_in_loops(graph.nodes, lambda body: bind(body, {}, array)),
    )


def check_bound(graph: ModelGraph, keys: Iterable[str]) -> None:
    """See that fixed values are read by something.

    Args:
        graph: a program after `infer`.
        keys: what was fixed.

    Raises:
        ValueError: a key is neither an input nor a weight.
    """
    read = {key for node in graph.nodes for key in node.inputs.values()}
    for node in graph.nodes:
        read |= set(node.stacked.values()) if isinstance(node, LoopNode) else set()
    for key in keys:
        if key not in read and key not in graph.outputs.values():
            known = sorted({*graph.inputs, *graph.weights})
            raise ValueError(
                f"constant_keys: there is no {key!r}; there are: "
                f"{', '.join(known[:12])}."
            )


def merge_equal(graph: ModelGraph) -> ModelGraph:
    """Compute once what is computed twice: the same op of the same values.

    Layers with weights of their own differ by these, and random draws by their keys.

    Args:
        graph: a program after `infer`.
    """
    instead: dict[str, str] = {}
    first: dict[Any, GraphNode] = {}
    nodes: list[GraphNode] = []
    for node in _in_loops(graph.nodes, merge_equal):
        inputs = {p: instead.get(k, k) for p, k in node.inputs.items()}
        node = dataclasses.replace(node, inputs=inputs)
        if isinstance(node, OpNode):
            given = tuple(inputs.items())
            mark = (node.op, hash_key(node.attrs), given, len(node.outputs))
            before = first.setdefault(mark, node)
            if before is not node:
                instead.update(zip(node.outputs, before.outputs, strict=True))
                continue
        nodes.append(node)
    outputs = {name: instead.get(k, k) for name, k in graph.outputs.items()}
    return dataclasses.replace(graph, nodes=tuple(nodes), outputs=outputs)


def fold_constants(graph: ModelGraph, xp: Any, find: Callable[[str], Op]) -> ModelGraph:
    """Compute now what depends on constants only, unless it is large.

    Args:
        graph: a program after `infer`.
        xp: the backend's namespace.
        find: the op of a name.
    """
    constants = dict(graph.constants)
    nodes: list[GraphNode] = []
    for node in _in_loops(graph.nodes, lambda body: fold_constants(body, xp, find)):
        is_fixed = isinstance(node, OpNode) and all(
            key in constants for key in node.inputs.values()
        )
        if is_fixed and all(_is_small(graph.specs[key]) for key in node.outputs):
            wanted = {key: key for key in node.outputs}
            constants |= run(ModelGraph({}, constants, (node,), wanted), {}, xp, find)
        else:
            nodes.append(node)
    return dataclasses.replace(graph, nodes=tuple(nodes), constants=constants)


def _in_loops(
    nodes: Iterable[GraphNode], change: Callable[[ModelGraph], ModelGraph]
) -> tuple[GraphNode, ...]:
    """The steps, with the bodies of loops changed."""
    return tuple(
        dataclasses.replace(node, body=change(node.body))
        if isinstance(node, LoopNode)
        else node
        for node in nodes
    )


def _is_small(spec: Spec) -> bool:
    known = all(isinstance(length, int) for length in spec.shape)
    return known and math.prod(spec.shape) * spec.dtype.itemsize <= FOLDED_BYTES


def _suits(shape: tuple[int, ...], said: Sequence[Any]) -> bool:
    return len(shape) == len(said) and all(
        not isinstance(wanted, int) or length == wanted
        for length, wanted in zip(shape, said, strict=True)
    )
