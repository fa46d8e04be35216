"""The body of a scan or a cond as a small program of its own.

Reads: a jaxpr. Gives: what each way to do it again would keep and cost (`ways`), and
the function that does it in one of them (`run_body`). Inside a loop or a branch
`jax.checkpoint` survives every compiler: such a body is compiled by itself, so there
is nothing to merge it with.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from frugax.jaxprs import (
    ClosedJaxpr,
    Graph,
    Var,
    jaxpr_as_fun,
    shape_of,
    trace,
    variables,
)

from ._body import Body, sort_operations
from ._costs import costs_of_all
from ._needs import is_inexact
from ._plan import Redo
from ._results import from_results

_NAME = "frugax_kept"


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One way to do a body again.

    Attributes:
        kept: operations whose results are kept; None: all that is needed is.
        saved: bytes kept each time it runs, its inputs left out.
        held: bytes there while its backward pass runs.
        flops: done again each time.
    """

    kept: tuple[int, ...] | None
    saved: int
    held: int
    flops: int


def read_inner(jaxpr: ClosedJaxpr, active_inputs: Sequence[bool]) -> Body:
    """The body with its operations sorted; gradients go through `active_inputs`."""
    graph = trace(jaxpr_as_fun(jaxpr), list(map(shape_of, jaxpr.jaxpr.invars)))
    pairs = zip(graph.args, active_inputs, strict=True)
    return sort_operations(graph, tuple(v for v, a in pairs if a), {})


def ways(body: Body) -> list[Way]:
    """All ways to do this body again, from nothing done again to everything."""
    return [
        Way(c.kept if mode else None, c.stored_bytes, c.transient_bytes, c.flops)
        for mode, c in enumerate(costs_of_all(body))
        if c.possible
    ]


def run_body(body: Body, redo: Redo) -> Callable[..., list[Any]]:
    """The body as a function of its inputs that does itself again as told.

    Raises:
        ValueError: the plan names operations that are not there.
    """
    graph = body.graph
    if redo.kept is None:
        return lambda *args: _run(graph, frozenset(), args)
    if any(not 0 <= i < len(body.eqns) for i in redo.kept):
        raise ValueError(
            f"a damaged plan: a loop or branch of {len(body.eqns)} operations has no "
            f"number {max(redo.kept)}. Plan again with remat.plan."
        )
    kept = frozenset(v for i in redo.kept for v in body.eqns[i].outvars)
    policy = jax.checkpoint_policies.save_only_these_names(_NAME)
    run = functools.partial(_run, graph, kept)
    again = jax.checkpoint(lambda args: run(args), policy=policy, prevent_cse=False)
    return lambda *args: again(args)


def _run(graph: Graph, kept: frozenset[Var], args: Sequence[Any]) -> list[Any]:
    """The graph, with a name that a policy can tell on all that is in `kept`."""
    env = dict(zip(graph.inputs, [*graph.const_values, *args], strict=True))
    named = [i for i, e in enumerate(graph.eqns) if kept & set(e.outvars)]
    edges = sorted({0, *named, *(i + 1 for i in named), len(graph.eqns)})
    for start, stop in itertools.pairwise(edges):
        eqns = graph.eqns[start:stop]
        last = lambda v, stop=stop: graph.last_use.get(v, 0) >= stop
        made = [v for e in eqns for v in e.outvars if v in kept or last(v)]
        inside = {v for e in eqns for v in e.outvars}
        read = dict.fromkeys(v for e in eqns for v in variables(e.invars))
        inputs = [v for v in read if v not in inside]
        run = graph.run(eqns, inputs, made)
        outs = run(*(env[v] for v in inputs))
        if start in named:
            outs = _named(run, inputs, outs, env)
        env |= zip(made, outs, strict=True)
    return [env[v] if variables([v]) else v.val for v in graph.outputs]


def _named(
    run: Callable[..., list[Any]],
    inputs: Sequence[Var],
    outs: Sequence[Any],
    env: dict[Var, Any],
) -> list[Any]:
    """The results with their name, by which their derivative finds them, too."""
    moving = [v for v in inputs if is_inexact(v)]

    def of_moving(*moved: Any) -> list[Any]:
        here = dict(zip(moving, moved, strict=True))
        return run(*(here.get(v, env[v]) for v in inputs))

    told = [checkpoint_name(o, _NAME) for o in outs]
    return from_results(of_moving, [env[v] for v in moving], told)
