"""The loss with its scans and conds done again as a plan says.

Reads: a `RematGraph` and `BodyPlan`s. Gives: the `RematGraph` rewritten by them.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frugax.jaxprs import (
    Graph,
    JaxprEqn,
    Var,
    shape_of,
    split_scan,
    trace,
    variables,
)

from .._plan import BodyPlan, Recompute
from ._bodies import prepare_body, run_body
from ._graph import RematGraph, is_inexact, prepare_graph


def rewrite_loops(
    body: RematGraph,
    insides: Sequence[BodyPlan],
    scratch: Mapping[int, int] | None = None,
) -> RematGraph:
    """The same loss, with these scans and conds done again.

    Args:
        body: the loss.
        insides: what is done again in which of its operations.
        scratch: bytes that each of these operations, by place, holds inside while its
            backward pass runs; only planning asks for them.

    Raises:
        ValueError: an inside names no scan or cond, or does not fit the one it names.
    """
    if not insides:
        return body
    chosen = {i.place: i for i in insides}
    graph = body.graph
    for place, inside in chosen.items():
        _check(graph, place, inside)
    eqns: list[JaxprEqn] = []
    consts, values = list(graph.consts), list(graph.const_values)
    renamed: dict[Var, Any] = {}
    held: dict[Var, int] = {}
    now = lambda atoms: [renamed.get(v, v) if variables([v]) else v for v in atoms]
    for i, eqn in enumerate(graph.eqns):
        if i not in chosen:
            eqns.append(eqn.replace(invars=now(eqn.invars)))
            continue
        if (i, chosen[i]) not in body.known:
            body.known[i, chosen[i]] = _again(eqn, chosen[i], body)
        inner = body.known[i, chosen[i]]
        here = dict(zip(inner.args, now(eqn.invars), strict=True))
        told = lambda atoms, here=here: [
            here.get(v, v) if variables([v]) else v for v in atoms
        ]
        eqns += [e.replace(invars=told(e.invars)) for e in inner.eqns]
        consts += inner.consts
        values += inner.const_values
        renamed |= zip(eqn.outvars, told(inner.outputs), strict=True)
        (loop,) = [e for e in inner.eqns if e.primitive.name in ("scan", "cond")]
        held[loop.outvars[0]] = (scratch or {}).get(i, 0)
    rewritten = dataclasses.replace(
        graph,
        eqns=tuple(eqns),
        consts=tuple(consts),
        const_values=tuple(values),
        outputs=tuple(now(graph.outputs)),
    )
    return prepare_graph(rewritten, body.wanted, body.ends, held, body.known)


def loop_bodies(eqn: JaxprEqn, body: RematGraph) -> list[RematGraph]:
    """The body of this scan, or the branches of this cond."""
    moving = [bool(variables([v])) and v in body.active for v in eqn.invars]
    if eqn.primitive.name == "cond":
        return [prepare_body(b, moving[1:]) for b in eqn.params["branches"]]
    held, carried = split_scan(eqn)
    inner = eqn.params["jaxpr"]
    for i in range(held, held + carried):
        # A gradient may come to a carry from any round, whatever it starts from.
        moving[i] = is_inexact(inner.jaxpr.invars[i])
    return [prepare_body(inner, moving)]


def _check(graph: Graph, place: int, inside: BodyPlan) -> None:
    eqn = graph.eqns[place] if 0 <= place < len(graph.eqns) else None
    name = eqn.primitive.name if eqn else "missing"
    fits = False
    if eqn is not None and name == inside.kind == "scan":
        fits = inside.chunk > 0 and eqn.params["length"] % inside.chunk == 0
    elif eqn is not None and name == inside.kind == "cond":
        fits = len(inside.bodies) == len(eqn.params["branches"])
    if not fits or any(b.rounds < 1 for b in inside.bodies):
        raise ValueError(
            f"a damaged plan: operation {place} is {name}, which cannot be done again "
            f"in {inside.chunk} rounds or branches. Plan again with remat.plan."
        )


def _again(eqn: JaxprEqn, inside: BodyPlan, body: RematGraph) -> Graph:
    """The operations that do what this one does, and are done again as told."""
    inner = loop_bodies(eqn, body)
    run = lambda b, redo: run_body(rewrite_loops(b, redo.inner), redo)
    if eqn.primitive.name == "cond":
        branches = [run(b, r) for b, r in zip(inner, inside.bodies, strict=True)]
        fn = lambda index, *args: lax.switch(index, branches, *args)
    else:
        rounds = [(run(inner[0], redo), redo) for redo in inside.bodies]
        fn = functools.partial(_scan, eqn, rounds)
    return trace(fn, list(map(shape_of, eqn.invars)))


def _scan(
    eqn: JaxprEqn, rounds: Sequence[tuple[Any, Recompute]], *args: Any
) -> list[Any]:
    """A scan in chunks, of each of which the first rounds are treated so, the next so.

    A single kind of round that is not to be done again together needs no chunks.
    """
    length, backwards = eqn.params["length"], eqn.params["reverse"]
    n_held, n_carried = split_scan(eqn)
    held = args[:n_held]
    start, xs = (
        list(args[n_held : n_held + n_carried]),
        list(args[n_held + n_carried :]),
    )

    def loop(run: Any, many: int, carry: list[Any], x: list[Any]) -> Any:
        def one(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            outs = run(*held, *carry, *x)
            return outs[:n_carried], outs[n_carried:]

        unroll = min(eqn.params["unroll"], many)
        return lax.scan(one, carry, x, many, reverse=backwards, unroll=unroll)

    (first_run, first), *more = rounds
    if not (more or first.together):
        carry, ys = loop(first_run, length, start, xs)
        return [*carry, *ys]

    def part(run: Any, redo: Recompute, at: int) -> Any:
        rows = slice(at, at + redo.rounds)

        def go(carry: list[Any], x: list[Any]) -> Any:
            return loop(run, redo.rounds, carry, [leaf[rows] for leaf in x])

        # Sliced inside a checkpoint: from outside slices are kept, copies of what is
        # there. But one that keeps things may hold none that keeps less.
        if redo.together:
            return jax.checkpoint(go, prevent_cse=False)
        if not redo.pieces:
            return jax.checkpoint(go, prevent_cse=False, policy=_all_but_slices)
        return go

    ends = list(itertools.accumulate(redo.rounds for _, redo in rounds))
    chunk = ends[-1]
    parts = [
        part(run, redo, end - redo.rounds)
        for (run, redo), end in zip(rounds, ends, strict=True)
    ]

    def one_chunk(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        made: list[list[Any]] = []
        for go in reversed(parts) if backwards else parts:
            carry, ys = go(carry, x)
            made.append(ys)
        made = made[::-1] if backwards else made
        return carry, [jnp.concatenate(ys) for ys in zip(*made, strict=True)]

    chunks = length // chunk
    split = [x.reshape(chunks, chunk, *x.shape[1:]) for x in xs]
    carry, ys = lax.scan(one_chunk, start, split, chunks, reverse=backwards)
    return [*carry, *(y.reshape(length, *y.shape[2:]) for y in ys)]


def _all_but_slices(operation: Any, *_: Any, **__: Any) -> bool:
    return operation.name != "slice"
