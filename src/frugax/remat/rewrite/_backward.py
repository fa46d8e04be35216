"""Run a loss and its gradients by a plan: segment by segment, forward and back.

The backward pass is written out and not left to `jax.grad` of the whole. Inside a
recomputed segment, the gradients of the weights of each part can then be forced to come
before the next part starts; compilers like to postpone them, and keep alive the
activations that they are computed from.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from frugax.jaxprs import (
    Literal,
    Var,
    remove_dead_code,
    shape_of,
    trace,
    use_fast_convolutions,
    variables,
)

from .._plan import Segment
from ._gates import Gate, opaque_true, through_gate, vary_as, wait_for, zeros_of
from ._graph import RematGraph
from ._subgraph import PullBack, Subgraph, extract_subgraph, inputs_to_tie
from ._weights_first import run_weights_first

# The parts of a forward pass, in order, each with its pull-back.
Tape = list[tuple[Subgraph, PullBack]]


def value_and_gradients(
    body: RematGraph,
    segments: Sequence[Segment],
    values: Sequence[Any],
    cotangents: Sequence[Any] | None = None,
) -> tuple[list[Any], list[Any]]:
    """The flat outputs of the loss, and the gradients of its first output.

    With `cotangents`, the gradients are those of the first outputs weighted by these.
    """
    graph = body.graph
    inputs = [*graph.const_values, *values]
    env: dict[Var, Any] = dict(zip(graph.inputs, inputs, strict=True))
    tape = record_tape(body, segments, env)
    first = graph.outputs[: body.num_differentiated]
    if cotangents is None:
        # Inside of `shard_map` it varies between devices as the number does.
        shapes = [shape_of(v if isinstance(v, Literal) else env[v]) for v in first]
        cotangents = [vary_as(s, jnp.ones(s.shape, s.dtype)) for s in shapes]
    # XLA would fold a constant 1, and the gates that wait for it with it.
    if arrived := variables(first):
        true = opaque_true([env[v] for v in arrived])
        cotangents = [wait_for(true, c) for c in cotangents]
    return graph.read_outputs(env), pull_tape(body, tape, cotangents)


def pull_tape(body: RematGraph, tape: Tape, cotangents: Sequence[Any]) -> list[Any]:
    """The gradients of the first outputs weighted by `cotangents`."""
    grads: dict[Var, Any] = {}
    for v, c in zip(body.graph.outputs, cotangents, strict=False):
        if variables([v]):
            grads[v] = grads[v] + c if v in grads else c
    _run_backward(body, tape, grads, in_order=False)
    return [_gradient(grads, v) for v in body.wrt]


def record_tape(
    body: RematGraph, segments: Sequence[Segment], env: dict[Var, Any]
) -> Tape:
    """Run forward, adding to `env`."""
    tape: Tape = []
    for segment in segments:
        if segment.gate is None:
            tape += _run_kept(body, segment.start, segment.stop, env, {})
            continue
        kept = [v for i in segment.kept for v in body.eqns[i].outvars]
        part = extract_subgraph(body, segment.start, segment.stop, also=kept)
        values = part.run(*(env[v] for v in part.inputs))
        env |= zip(part.outputs, values, strict=True)
        pull_back = _recompute_later(body, segment, segment.gate, part, kept, env)
        tape.append((part, pull_back))
    return tape


def _run_kept(
    body: RematGraph,
    start: int,
    stop: int,
    env: dict[Var, Any],
    kept: dict[Var, Any],
) -> Tape:
    """Run forward in small parts, adding to `env`, and save all residuals.

    The results in `kept` are at hand already and are not computed again.
    """
    # One `jax.vjp` for each part and not for the whole segment, so that the backward
    # pass can put the gradients of weights in order between them.
    single = {body.defined_at[v] for v in kept}
    edges = {*body.cuts, *single, *(i + 1 for i in single)}
    inner = sorted(c for c in edges if start < c < stop)
    tape: Tape = []
    for a, b in itertools.pairwise([start, *inner, stop]):
        also, results = [], None
        if a in single:
            also = [v for v in body.eqns[a].outvars if v in kept]
        part = extract_subgraph(body, a, b, also=also)
        if also:
            results = [kept[v] for v in part.outputs]
        outs, pull_back = part.vjp([env[v] for v in part.inputs], results)
        env |= zip(part.outputs, outs, strict=True)
        tape.append((part, pull_back))
    return tape


def _run_backward(
    body: RematGraph, tape: Tape, grads: dict[Var, Any], *, in_order: bool
) -> None:
    """Pull `grads` back through the parts, the last part first.

    If `in_order`, no part starts before the gradients of the weights of the part after
    it are there.
    """
    for part, pull_back in reversed(tape):
        arrived = [v for v in part.active_outputs if v in grads]
        if not arrived:
            continue
        cotangents = [_gradient(grads, v) for v in part.active_outputs]
        # All readers of these come later in the program and have been pulled back, so
        # the sums are complete and used up.
        for v in arrived:
            del grads[v]
        new = dict(zip(part.active_inputs, pull_back(cotangents), strict=True))
        finished = [g for v, g in new.items() if v not in body.defined_at]
        if finished and in_order:
            true = opaque_true(finished)
            for v in body.intermediates(new):
                new[v] = wait_for(true, new[v])
        # A variable with several readers gets the sum of their gradients.
        for v, g in new.items():
            grads[v] = grads[v] + g if v in grads else g


def _gradient(grads: dict[Var, Any], v: Var) -> Any:
    if v in grads:
        return grads[v]
    return zeros_of(shape_of(v))


def _recompute_later(
    body: RematGraph,
    segment: Segment,
    gate: Gate,
    part: Subgraph,
    kept: Sequence[Var],
    env: dict[Var, Any],
) -> PullBack:
    """The pull-back that first recomputes the segment from its inputs and `kept`."""
    saved = [*part.inputs, *kept]

    def recompute_and_pull(values: list[Any], cotangents: list[Any]) -> list[Any]:
        env = dict(zip(saved, values, strict=True))
        # The mark of `jax.checkpoint`, for profilers and `measure.peak`.
        with jax.named_scope("rematted_computation"):
            if segment.nested:
                tape = record_tape(body, segment.nested, env)
            else:
                results = {v: env[v] for v in kept}
                tape = _run_kept(body, segment.start, segment.stop, env, results)
        grads = dict(zip(part.active_outputs, cotangents, strict=True))
        _run_backward(body, tape, grads, in_order=True)
        return [_gradient(grads, v) for v in part.active_inputs]

    def pull(values: list[Any], cotangents: list[Any]) -> list[Any]:
        # Traced and stripped of dead code first: an input that no gradient needs would
        # otherwise be kept alive until the branch runs, and the operations that lead to
        # results alone would run a second time.
        again = trace(recompute_and_pull, (values, cotangents))
        if gate == "cond":
            again = use_fast_convolutions(again, everywhere=True)
        live, used = remove_dead_code(again.jaxpr, [True] * len(again.outputs))
        run = run_weights_first(again, live, gate)
        reads = [*again.const_values, *values, *cotangents]
        tied = [False] * len(again.consts) + inputs_to_tie(body, part.eqns, saved)
        first_cotangent = len(reads) - len(cotangents)
        indices = [i for i, is_used in enumerate(used) if is_used]
        inputs = [reads[i] for i in indices if i < first_cotangent]
        last = [reads[i] for i in indices if i >= first_cotangent]
        ties = [tied[i] for i in indices if i < first_cotangent]
        return through_gate(gate, lambda x, c: run(*x, *c), inputs, last, tied=ties)

    # Segments with equal keys are pulled back by the same operations.
    start, stop = segment.start, segment.stop
    cuts = tuple(c - start for c in body.cuts if start < c < stop)
    is_inner = tuple(v in body.defined_at for v in part.inputs)
    how = _relative_to(segment, start), cuts, is_inner
    pull_back = functools.partial(body.traced.call, ("later", part.key, how), pull)
    return Partial(pull_back, [env[v] for v in saved])


def _relative_to(segment: Segment, start: int) -> Any:
    """The key of a segment's treatment, which does not depend on its position."""
    kept = tuple(i - start for i in segment.kept)
    nested = tuple(_relative_to(s, start) for s in segment.nested)
    return segment.start - start, segment.stop - start, segment.gate, kept, nested
