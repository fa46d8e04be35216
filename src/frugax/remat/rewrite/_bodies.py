"""The body of a scan or a cond as a small program of its own.

Reads: a jaxpr. Gives: what each way to do it again would keep and cost (`ways`), and
the function that does it in one of them (`run_body`). BodyPlan a loop or a branch
`jax.checkpoint` survives every compiler: such a body is compiled by itself, so there
is nothing to merge it with.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from frugax.jaxprs import (
    ClosedJaxpr,
    jaxpr_as_fun,
    shape_of,
    trace,
    variables,
)

from .._check import check_ranges
from .._plan import Chunk, Recompute
from ._graph import RematGraph, prepare_graph
from ._reuse_results import reuse_results
from ._subgraph import extract_subgraph

_NAME = "frugax_kept"


def prepare_body(jaxpr: ClosedJaxpr, active_inputs: Sequence[bool]) -> RematGraph:
    """The body with its operations sorted; gradients go through `active_inputs`."""
    graph = trace(jaxpr_as_fun(jaxpr), list(map(shape_of, jaxpr.jaxpr.invars)))
    pairs = zip(graph.args, active_inputs, strict=True)
    moving = tuple(v for v, a in pairs if a)
    return prepare_graph(graph, moving, len(graph.outputs), {})


def run_body(body: RematGraph, redo: Recompute) -> Callable[..., list[Any]]:
    """The body as a function of its inputs that does itself again as told.

    Raises:
        ValueError: the plan names operations that are not there.
    """
    graph, size = body.graph, len(body.eqns)
    pieces = redo.pieces or (Chunk(0, size, None),)
    check_ranges(pieces, 0, size)

    def run(*args: Any) -> list[Any]:
        env = dict(zip(graph.inputs, [*graph.const_values, *args], strict=True))
        for piece in pieces:
            part = extract_subgraph(body, piece.start, piece.stop)
            go = functools.partial(_run_piece, body, piece)
            if piece.kept is not None:
                policy = jax.checkpoint_policies.save_only_these_names(_NAME)
                go = jax.checkpoint(go, policy=policy, prevent_cse=False)
            env |= zip(part.outputs, go([env[v] for v in part.inputs]), strict=True)
        return [env[v] if variables([v]) else v.val for v in graph.outputs]

    return run


def _run_piece(body: RematGraph, piece: Chunk, values: list[Any]) -> list[Any]:
    """A piece, with a name that a policy can tell on what is kept of it."""
    whole = extract_subgraph(body, piece.start, piece.stop)
    env = dict(zip(whole.inputs, values, strict=True))
    alone = set(piece.kept or ())
    edges = {piece.start, piece.stop, *alone, *(i + 1 for i in alone)}
    for a, b in itertools.pairwise(sorted(edges)):
        named = body.eqns[a].outvars if a in alone else ()
        part = extract_subgraph(body, a, b, also=named)
        outs = part.run(*(env[v] for v in part.inputs))
        if named:
            # Its derivative, too, finds it by that name.
            told = [checkpoint_name(o, _NAME) for o in outs]
            moving, rest = ([env[v] for v in vs] for vs in (part.moving, part.rest))
            outs = reuse_results(part.outputs_at, moving, rest, told)
        env |= zip(part.outputs, outs, strict=True)
    return [env[v] for v in whole.outputs]
