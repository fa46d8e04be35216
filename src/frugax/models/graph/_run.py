"""Run a flat program in any namespace: the same walk traces, computes and checks."""

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
    """Compute the outputs.

    Args:
        graph: a program that went through `infer`.
        values: an array for each input and weight, by key.
        xp: the namespace to compute in.
        find: the op of a name.
        scope: makes a context in which the ops of a place run, for a profiler to name.

    Returns:
        An array for each output, by name.
    """
    env: dict[str, Any] = {**graph.constants, **values}
    last = _last_reads(graph)
    for i, node in enumerate(graph.nodes):
        with scope(node.path or "model"):
            if isinstance(node, LoopNode):
                env[node.outputs[0]] = _loop(node, env, xp, find, scope)
            else:
                env.update(zip(node.outputs, _one(node, env, xp, find), strict=True))
        for key in last.get(i, ()):
            del env[key]  # an eager run would hold every intermediate result
    return {name: env[key] for name, key in graph.outputs.items()}


def _one(
    node: OpNode, env: Mapping[str, Any], xp: Any, find: Callable[[str], Op]
) -> tuple[Any, ...]:
    op = find(node.op)
    tensors = [None if k is None else env[k] for k in op_arguments(op, node.inputs)]
    made = op(xp, *tensors, **dict(node.attrs))
    several = isinstance(made, (tuple, list))
    return tuple(made)[: len(node.outputs)] if several else (made,)


def _loop(
    node: LoopNode,
    env: Mapping[str, Any],
    xp: Any,
    find: Callable[[str], Op],
    scope: Scope,
) -> Any:
    shared = {p: env[k] for p, k in node.inputs.items() if p != node.carry}
    stacked = {name: env[key] for name, key in node.stacked.items()}
    names = tuple(stacked)
    key = None if node.draws is None else shared.pop(node.draws)

    def step(carry: Any, own: tuple[Any, ...]) -> tuple[Any, tuple[()]]:
        values = {**shared, node.carry: carry}
        if node.counts:
            number, own = own[0], own[1:]
            if node.draws is not None:
                values[node.draws] = find("fold_in")(xp, key, index=number)
        values |= dict(zip(names, own, strict=True))
        return run(node.body, values, xp, find, scope)["output"], ()

    numbers = (xp.arange(len(node.names)),) if node.counts else ()
    first = env[node.inputs[node.carry]]
    out, _ = xp.scan(step, first, (*numbers, *stacked.values()))
    return out


def _last_reads(graph: ModelGraph) -> dict[int, list[str]]:
    kept = {*graph.outputs.values()}
    made = {key for node in graph.nodes for key in node.outputs}
    last: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for key in (*node.inputs.values(), *node.outputs):
            if key in made and key not in kept:
                last[key] = i
    dead: dict[int, list[str]] = {}
    for key, i in last.items():
        dead.setdefault(i, []).append(key)
    return dead
