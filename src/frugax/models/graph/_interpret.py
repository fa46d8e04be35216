"""Interpret a model graph node by node, with the array functions of one backend."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from frugax.models.ops import Op

from ._graph import LoopNode, ModelGraph, OpNode
from ._infer import op_arguments

Scope = Callable[[str], contextlib.AbstractContextManager[Any]]


def run(
    graph: ModelGraph,
    values: Mapping[str, Any],
    xp: Any,
    find: Callable[[str], Op],
    scope: Scope = contextlib.nullcontext,
) -> dict[str, Any]:
    """Compute the outputs of a program."""
    env: dict[str, Any] = {**graph.constants, **values}
    dead_keys = _find_dead_keys(graph)
    for i, node in enumerate(graph.nodes):
        with scope(node.path or "model"):
            if isinstance(node, LoopNode):
                env[node.outputs[0]] = _run_loop(node, env, xp, find, scope)
            else:
                env.update(zip(node.outputs, _run_op(node, env, xp, find), strict=True))
        # An eager run would otherwise hold every intermediate result until the end.
        for key in dead_keys.get(i, ()):
            del env[key]
    return {name: env[key] for name, key in graph.outputs.items()}


def _run_op(
    node: OpNode, env: Mapping[str, Any], xp: Any, find: Callable[[str], Op]
) -> tuple[Any, ...]:
    op = find(node.op)
    arguments = op_arguments(op, node.inputs)
    tensors = [None if key is None else env[key] for key in arguments]
    results = op(xp, *tensors, **dict(node.attrs))
    if not isinstance(results, (tuple, list)):
        return (results,)
    # An op may return more than its layer names, such as a batch norm at inference.
    return tuple(results)[: len(node.outputs)]


def _run_loop(
    node: LoopNode,
    env: Mapping[str, Any],
    xp: Any,
    find: Callable[[str], Op],
    scope: Scope,
) -> Any:
    shared = {p: env[k] for p, k in node.inputs.items() if p != node.carry}
    stacked = {name: env[key] for name, key in node.stacked.items()}
    names = tuple(stacked)
    key = None
    if node.key_port is not None:
        key = shared.pop(node.key_port)

    def step(carry: Any, own: tuple[Any, ...]) -> tuple[Any, tuple[()]]:
        values = {**shared, node.carry: carry}
        if node.needs_index:
            number, own = own[0], own[1:]
            if node.key_port is not None:
                values[node.key_port] = find("fold_in")(xp, key, index=number)
        values |= dict(zip(names, own, strict=True))
        return run(node.body, values, xp, find, scope)["output"], ()

    # Stacked weights are scanned over, not indexed: the backward pass of an index is a
    # scatter into an array of all blocks.
    scanned = tuple(stacked.values())
    if node.needs_index:
        scanned = (xp.arange(len(node.names)), *scanned)
    out, _ = xp.scan(step, env[node.inputs[node.carry]], scanned)
    return out


def _find_dead_keys(graph: ModelGraph) -> dict[int, list[str]]:
    """The values that nothing reads after each node, by the number of the node."""
    kept = {*graph.outputs.values()}
    computed = {key for node in graph.nodes for key in node.outputs}
    last_use: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for key in (*node.inputs.values(), *node.outputs):
            if key in computed and key not in kept:
                last_use[key] = i
    dead: dict[int, list[str]] = {}
    for key, i in last_use.items():
        dead.setdefault(i, []).append(key)
    return dead
