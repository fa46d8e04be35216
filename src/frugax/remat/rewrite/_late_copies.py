"""Recompute layers before their late readers, in losses with gradients inside.

A loss that takes a gradient inside, such as MAML or a physics-informed net, reads the
results of each layer twice: in the next layer, and much later in its own backward pass.
Recomputing segments of such a loss does not help, because the values live through its
forward pass already. Here blocks of operations are computed again just before the late
readers, from the results that pass from block to block: this is what `jax.checkpoint`
around each layer does there.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax import lax

from frugax.jaxprs import (
    JaxprEqn,
    Var,
    bytes_of,
    shape_of,
    trace,
    variables,
)

from .._plan import LateCopies
from ._active import is_inexact
from ._gates import opaque_true, wait_for
from ._graph import RematGraph, Splice, prepare_graph, splice
from ._subgraph import inputs_to_tie


def reads_late_from(body: RematGraph, edges: Sequence[int]) -> bool:
    """Whether copies of these blocks would save bytes."""
    return any(True for _ in _late_blocks(body, edges))


def copy_late(body: RematGraph, copies: LateCopies) -> RematGraph:
    """The same loss, which computes blocks again where their results are read late.

    Raises:
        ValueError: the plan does not fit this loss.
    """
    graph, size = body.graph, len(body.eqns)
    for edges in copies.runs:
        in_order = [0, *edges, size] == sorted([0, *edges, size])
        if not in_order or len({*edges}) < max(len(edges), 2):
            raise ValueError(
                f"damaged plan: blocks that end at {edges} are not among the {size} "
                "operations. Plan again with remat.plan."
            )
    places = {id(e): i for i, e in enumerate(graph.eqns)}
    at: dict[int, list[Splice]] = {}
    for edges in copies.runs:
        for block in _late_blocks(body, edges):
            place = places[id(body.eqns[block.first])]
            at.setdefault(place, []).append(_copy(body, block, copies.gate))
    # A memo's keys are positions of operations, which change.
    spliced = splice(graph, at)
    return prepare_graph(spliced, body.wrt, body.num_differentiated, {})


def _copy(body: RematGraph, block: "_LateBlock", gate: str) -> Splice:
    reads, tied = block.reads, inputs_to_tie(body, block.own, block.reads)
    run = body.graph.run(body.include_free(block.own), reads, block.results)

    def again(*values: Any) -> Any:
        *inputs, arrived = values
        waiting = [x for x, t in zip(inputs, tied, strict=True) if t]
        if gate == "barrier":
            waiting = lax.optimization_barrier((*waiting, arrived))
        else:
            true = opaque_true([lax.stop_gradient(arrived)])
            waiting = [wait_for(true, x) for x in waiting]
        held = iter(waiting)
        return run(*(next(held) if t else x for x, t in zip(inputs, tied, strict=True)))

    names = [*reads, block.recent]
    return Splice(trace(again, list(map(shape_of, names))), names, block.results)


class _LateBlock(NamedTuple):
    """A block whose results are read late.

    `results` are read from operation `first` on, and not before; `own` are the
    operations that lead to them from `reads`; `recent` is known only just before.
    """

    results: list[Var]
    own: list[JaxprEqn]
    reads: list[Var]
    first: int
    recent: Var


def _late_blocks(body: RematGraph, edges: Sequence[int]) -> Iterator[_LateBlock]:
    end, outputs = edges[-1], set(variables(body.graph.outputs))
    readers: dict[Var, list[int]] = {}
    for i, e in enumerate(body.eqns):
        for v in {*body.intermediates(e.invars)}:
            readers.setdefault(v, []).append(i)
    # The last block is read soon after it has run.
    for start, stop in itertools.pairwise(edges[:-1]):
        late = [
            v
            for e in body.eqns[start:stop]
            for v in e.outvars
            if (at := readers.get(v)) and v not in outputs
            # Read by its own block and after the run, and nowhere in between.
            if at[-1] >= end and not any(stop <= i < end for i in at)
        ]
        own = _sources(body, start, stop, late)
        if not late or any(e.effects for e in own):
            continue
        first = min(i for v in late for i in readers[v] if i >= end)
        recent = _recent_value(body, set(late), first, end)
        if recent is None:
            continue
        eqns = body.include_free(own)
        defined = {v for e in eqns for v in e.outvars}
        read = dict.fromkeys(v for e in eqns for v in variables(e.invars))
        reads = [v for v in read if v not in defined]
        # The inputs of a copy live until then, in the place of its results.
        longer = [v for v in body.intermediates(reads) if body.last_use[v] < first]
        if sum(map(bytes_of, longer)) < sum(map(bytes_of, late)):
            yield _LateBlock(late, own, reads, first, recent)


def _sources(
    body: RematGraph, start: int, stop: int, wanted: Sequence[Var]
) -> list[JaxprEqn]:
    """The operations of a block that lead to these variables."""
    needed, found = set(wanted), list[JaxprEqn]()
    for e in reversed(body.eqns[start:stop]):
        if needed & set(e.outvars):
            found.append(e)
            needed |= set(variables(e.invars))
    return found[::-1]


def _recent_value(body: RematGraph, late: set[Var], first: int, end: int) -> Var | None:
    """A value that is computed only shortly before the late readers, read with them."""
    for e in body.eqns[first:]:
        if not late & set(variables(e.invars)):
            continue
        recent = [
            v
            for v in body.intermediates(e.invars)
            if end <= body.defined_at[v] < first and is_inexact(v) and bytes_of(v)
        ]
        if recent:
            return max(recent, key=body.defined_at.__getitem__)
    return None
