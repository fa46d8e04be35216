"""Run a plan: the loss and its gradients, segment by segment, there and back.

The way back is written out, not left to `jax.grad` of the whole. So, inside what is
done again, each piece's gradients of weights can be made to come before the next
piece starts: compilers like to put them off, and keep alive what they are made from.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import (
    ClosedJaxpr,
    Var,
    is_heavy,
    jaxpr_as_fun,
    remove_dead_code,
    shape_of,
    trace,
    use_fast_convolutions,
    variables,
)

from .._check import check_ranges
from .._plan import BodyPlan, Segment
from ._gates import Gate, after, opaque_true, through_gate
from ._graph import RematGraph, trace_loss
from ._loops import rewrite_loops
from ._subgraph import Pull, Subgraph, extract_subgraph


def value_and_gradients(
    body: RematGraph, segments: Sequence[Segment], values: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """What the loss returns, flattened, and the gradients of its first output.

    Args:
        body: the loss.
        segments: the plan, covering all operations of `body` in order.
        values: the arguments of the loss, flattened.
    """
    graph = body.graph
    given = [*graph.const_values, *values]
    env: dict[Var, Any] = dict(zip(graph.inputs, given, strict=True))
    back = _there(body, segments, env)
    grads: dict[Var, Any] = {}
    loss = graph.outputs[0]
    if variables([loss]):
        # A plain 1 would be known to the compiler, and what waits for it with it.
        one = jnp.ones((), shape_of(loss).dtype)
        grads[loss] = after(opaque_true([env[loss]]), one)
    _turn(body, back, grads, in_order=False)
    outputs = [env[v] if variables([v]) else v.val for v in graph.outputs]
    return outputs, [_gradient(grads, v) for v in body.wanted]


def _there(
    body: RematGraph, segments: Sequence[Segment], env: dict[Var, Any]
) -> list[tuple[Subgraph, Pull]]:
    """Run forward, adding to `env`; the parts, each with its way back."""
    back: list[tuple[Subgraph, Pull]] = []
    for segment in segments:
        if segment.gate is None:
            back += _keep(body, segment.start, segment.stop, env, {})
            continue
        kept = [v for i in segment.kept for v in body.eqns[i].outvars]
        part = extract_subgraph(body, segment.start, segment.stop, also=kept)
        reads = [env[v] for v in part.inputs]
        env |= zip(part.outputs, part.run(*reads), strict=True)
        back.append((part, _recompute(body, segment, segment.gate, part, kept, env)))
    return back


def _keep(
    body: RematGraph, start: int, stop: int, env: dict[Var, Any], kept: dict[Var, Any]
) -> list[tuple[Subgraph, Pull]]:
    """Run forward in small parts, adding to `env`; keep what the way back needs.

    Results in `kept` are there already: they are taken, and not made again.
    """
    alone = {body.defined_at[v] for v in kept}
    edges = {*body.cuts, *alone, *(i + 1 for i in alone)}
    inner = sorted(c for c in edges if start < c < stop)
    back: list[tuple[Subgraph, Pull]] = []
    for a, b in itertools.pairwise([start, *inner, stop]):
        taken = [v for v in body.eqns[a].outvars if v in kept] if a in alone else []
        part = extract_subgraph(body, a, b, also=taken)
        results = [kept[v] for v in part.outputs] if taken else None
        outs, pull = part.pull_at([env[v] for v in part.inputs], results)
        env |= zip(part.outputs, outs, strict=True)
        back.append((part, pull))
    return back


def _turn(
    body: RematGraph,
    back: list[tuple[Subgraph, Pull]],
    grads: dict[Var, Any],
    *,
    in_order: bool,
) -> None:
    """Carry `grads` back through the parts, last first.

    In order: no part starts before the gradients of weights of the last are there.
    """
    for part, pull in reversed(back):
        arrived = [v for v in part.turned if v in grads]
        if not arrived:
            continue
        cotangents = [_gradient(grads, v) for v in part.turned]
        for v in arrived:
            del grads[v]
        new = list(zip(part.moving, pull(cotangents), strict=True))
        finished = [g for v, g in new if v not in body.defined_at]
        true = opaque_true(finished) if finished and in_order else None
        for v, g in new:
            g = after(true, g) if true is not None and v in body.defined_at else g
            grads[v] = grads[v] + g if v in grads else g


def _gradient(grads: dict[Var, Any], v: Var) -> Any:
    if v in grads:
        return grads[v]
    zero = shape_of(v)
    return jnp.zeros(zero.shape, zero.dtype)


def _recompute(
    body: RematGraph,
    segment: Segment,
    gate: Gate,
    part: Subgraph,
    kept: Sequence[Var],
    env: dict[Var, Any],
) -> Pull:
    """The way back that first does the segment again, from its inputs and `kept`."""
    saved = [*part.inputs, *kept]
    values = [env[v] for v in saved]

    def there_and_back(given: list[Any], cotangents: list[Any]) -> list[Any]:
        again = dict(zip(saved, given, strict=True))
        if segment.inside:
            back = _there(body, segment.inside, again)
        else:
            taken = {v: again[v] for v in kept}
            back = _keep(body, segment.start, segment.stop, again, taken)
        grads = dict(zip(part.turned, cotangents, strict=True))
        _turn(body, back, grads, in_order=True)
        return [_gradient(grads, v) for v in part.moving]

    def pull(cotangents: list[Any]) -> list[Any]:
        # Traced and stripped first: what the gradients do not need is neither kept
        # nor done again, inside a branch as little as outside.
        again = trace(there_and_back, (values, cotangents))
        if gate == "cond":
            again = use_fast_convolutions(again, everywhere=True)
        live, used = remove_dead_code(again.jaxpr, [True] * len(again.outputs))
        run = jaxpr_as_fun(ClosedJaxpr(live, ()))
        reads = [*again.const_values, *values, *cotangents]
        tied = [False] * len(again.consts) + _tied(body, part, saved)
        first_cotangent = len(reads) - len(cotangents)
        there = [i for i, u in enumerate(used) if u]
        inputs = [reads[i] for i in there if i < first_cotangent]
        last = [reads[i] for i in there if i >= first_cotangent]
        ties = [tied[i] for i in there if i < first_cotangent]
        return through_gate(gate, lambda x, c: run(*x, *c), inputs, last, tied=ties)

    return pull


def _tied(body: RematGraph, part: Subgraph, saved: Sequence[Var]) -> list[bool]:
    """Which inputs the gate must tie to the cotangents, for nothing to be merged.

    Each that is tied may be copied, so: what earlier segments made; if some heavy
    operation does not depend on it, the data as well; if need be, the weights too.
    """
    made = {v for v in saved if v in body.defined_at}
    data = {v for v in part.inputs if v not in body.active}
    heavy = [e for e in part.eqns if is_heavy(e)]
    choice: set[Var] = set()
    for choice in (made, made | data, set(saved)):
        reached = set(choice)
        for e in part.eqns:
            if reached & set(variables(e.invars)):
                reached |= set(e.outvars)
        if choice and all(set(e.outvars) <= reached for e in heavy):
            break
    return [v in choice for v in saved]


def build_value_and_grad(
    loss: Callable[..., Any],
    segments: tuple[Segment, ...],
    insides: tuple[BodyPlan, ...],
    fingerprint: str,
    *,
    argnums: int | tuple[int, ...],
    has_aux: bool,
) -> Callable[..., Any]:
    """`jax.value_and_grad(loss, argnums, has_aux)`, run by these segments.

    Raises:
        ValueError: when called, if the loss or the shapes are not those of the plan.
    """

    def step(*args: Any) -> tuple[Any, Any]:
        body = trace_loss(loss, args, argnums, has_aux=has_aux)
        if body.graph.fingerprint != fingerprint:
            raise ValueError(
                "this plan was made for another loss or other shapes: it is for "
                f"{fingerprint:.8}, this is {body.graph.fingerprint:.8}. Plan again "
                "with remat.plan, with these shapes in example_args and in `within`."
            )
        if not segments:
            return jax.value_and_grad(loss, argnums, has_aux=has_aux)(*args)
        body = rewrite_loops(body, insides)
        check_ranges(segments, 0, len(body.eqns))
        outputs, flat = value_and_gradients(body, segments, jax.tree.leaves(args))
        value = jax.tree.unflatten(body.graph.out_tree, outputs)
        rest = iter(flat)
        gradient = lambda n: jax.tree.map(lambda _: next(rest), args[n])
        if isinstance(argnums, int):
            return value, gradient(argnums)
        return value, tuple(gradient(n) for n in argnums)

    return step
