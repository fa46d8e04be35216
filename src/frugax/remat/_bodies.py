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
    Var,
    bytes_of,
    jaxpr_as_fun,
    shape_of,
    trace,
    variables,
)

from ._body import Body, sort_operations
from ._check import check_ranges
from ._costs import Costs, costs_of_all
from ._part import part_of
from ._plan import Piece, Redo
from ._results import from_results
from ._solve import Step, drafts

_NAME = "frugax_kept"
# Of the plans that cut a body into pieces, so many are tried, evenly from all.
_MOST_CUT = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One way to do a body again.

    Attributes:
        pieces: as in `Redo`.
        saved: bytes kept each time it runs, its inputs left out.
        held: bytes there while its backward pass runs.
        flops: done again each time.
    """

    pieces: tuple[Piece, ...]
    saved: int
    held: int
    flops: int


def read_inner(jaxpr: ClosedJaxpr, active_inputs: Sequence[bool]) -> Body:
    """The body with its operations sorted; gradients go through `active_inputs`."""
    graph = trace(jaxpr_as_fun(jaxpr), list(map(shape_of, jaxpr.jaxpr.invars)))
    pairs = zip(graph.args, active_inputs, strict=True)
    moving = tuple(v for v, a in pairs if a)
    return sort_operations(graph, moving, len(graph.outputs), {})


def ways(body: Body) -> list[Way]:
    """Ways to do this body again, the first of which does nothing again."""
    if not body.eqns:
        return [Way((), 0, 0, 0)]
    found: list[Way] = []
    for mode, cost in enumerate(costs_of_all(body)):
        pieces = (Piece(0, len(body.eqns), cost.kept),) if mode else ()
        if cost.possible:
            sizes = cost.stored_bytes, cost.transient_bytes, cost.flops
            found.append(Way(pieces, *sizes))
    costs, made = drafts(body)
    cut = [d.steps for d in made if len(d.steps) > 1]
    return found + [_in_pieces(costs, steps) for steps in thinned(cut, _MOST_CUT)]


def thinned(found: Sequence[Any], most: int) -> Sequence[Any]:
    """At most so many of these, evenly, the first and the last among them."""
    if len(found) <= most:
        return found
    return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]


def _in_pieces(costs: Costs, steps: Sequence[Step]) -> Way:
    chosen = [costs.of[s.start, s.stop, s.mode] for s in steps]
    stored = frozenset[Var]().union(*(c.stored for c in chosen))
    pairs = zip(steps, chosen, strict=True)
    return Way(
        tuple(Piece(s.start, s.stop, c.kept if s.mode else None) for s, c in pairs),
        sum(map(bytes_of, stored)) + sum(c.hidden_bytes for c in chosen),
        max(c.transient_bytes for c in chosen),
        sum(c.flops for c in chosen),
    )


def run_body(body: Body, redo: Redo) -> Callable[..., list[Any]]:
    """The body as a function of its inputs that does itself again as told.

    Raises:
        ValueError: the plan names operations that are not there.
    """
    graph, size = body.graph, len(body.eqns)
    pieces = redo.pieces or (Piece(0, size, None),)
    check_ranges(pieces, 0, size)

    def run(*args: Any) -> list[Any]:
        env = dict(zip(graph.inputs, [*graph.const_values, *args], strict=True))
        for piece in pieces:
            part = part_of(body, piece.start, piece.stop)
            go = functools.partial(_run_piece, body, piece)
            if piece.kept is not None:
                policy = jax.checkpoint_policies.save_only_these_names(_NAME)
                go = jax.checkpoint(go, policy=policy, prevent_cse=False)
            env |= zip(part.outputs, go([env[v] for v in part.inputs]), strict=True)
        return [env[v] if variables([v]) else v.val for v in graph.outputs]

    return run


def _run_piece(body: Body, piece: Piece, values: list[Any]) -> list[Any]:
    """A piece, with a name that a policy can tell on what is kept of it."""
    whole = part_of(body, piece.start, piece.stop)
    env = dict(zip(whole.inputs, values, strict=True))
    alone = set(piece.kept or ())
    edges = {piece.start, piece.stop, *alone, *(i + 1 for i in alone)}
    for a, b in itertools.pairwise(sorted(edges)):
        named = body.eqns[a].outvars if a in alone else ()
        part = part_of(body, a, b, also=named)
        outs = part.run(*(env[v] for v in part.inputs))
        if named:
            # Its derivative, too, finds it by that name.
            told = [checkpoint_name(o, _NAME) for o in outs]
            moving, rest = ([env[v] for v in vs] for vs in (part.moving, part.rest))
            outs = from_results(part.outputs_at, moving, rest, told)
        env |= zip(part.outputs, outs, strict=True)
    return [env[v] for v in whole.outputs]
