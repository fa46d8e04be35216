"""Rewrite the scans and conds of a loss so that they recompute as a plan says.

The body of a loop, or a branch, is compiled as a computation of its own, and nothing
outside of it can be merged with it. So inside of one `jax.checkpoint` holds on every
backend, and is used; the gates of straight-line code are not needed.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from frugax.jaxprs import (
    ClosedJaxpr,
    Graph,
    JaxprEqn,
    Var,
    is_checkpoint,
    jaxpr_as_fun,
    shape_of,
    split_scan,
    trace,
    variables,
)

from .._plan import BodyPlan, Chunk, Recompute, check_ranges
from ._active import find_active_carry, is_inexact
from ._deep_scan import ScanSteps, scan_by_levels
from ._graph import RematGraph, Splice, prepare_graph, splice
from ._subgraph import extract_subgraph, reuse_results

# The names under which `jax.checkpoint` finds the results that a plan keeps, and those
# that it keeps in the host's memory.
_KEPT_NAME, _IN_HOST_NAME = "frugax_kept", "frugax_in_host"


def _for_all_operations(policy: Callable[..., Any]) -> Callable[..., Any]:
    """A policy that also accepts operations with a parameter named `prim`.

    JAX's policies call their own argument so (0.10.2), and equinox has such operations.
    """

    def judge(operation: Any, /, *avals: Any, **params: Any) -> Any:
        named = {key: value for key, value in params.items() if key == "name"}
        return policy(operation, *avals, **named)

    return judge


_SAVE_KEPT = _for_all_operations(
    jax.checkpoint_policies.save_only_these_names(_KEPT_NAME)
)
_SAVE_IN_HOST = _for_all_operations(
    jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[_KEPT_NAME],
        names_which_can_be_offloaded=[_IN_HOST_NAME],
        offload_src="device",
        offload_dst="pinned_host",
    )
)
# One of these takes the place of a rewritten scan or cond.
_LOOPS = ("scan", "cond", "custom_vjp_call")


def rewrite_loops(
    body: RematGraph,
    body_plans: Sequence[BodyPlan],
    scratch_bytes: Mapping[int, int] | None = None,
) -> RematGraph:
    """The same loss, whose scans and conds recompute as these plans say."""
    if not body_plans:
        return body
    graph = body.graph
    for plan in body_plans:
        _check_operation(graph, plan)
    replaced: dict[int, list[Splice]] = {}
    scratch_of: dict[Var, int] = {}
    for plan in body_plans:
        i = graph.numbered[plan.operation]
        # The same plan for a loop comes up in many candidates; it is traced once.
        make = functools.partial(_trace_rewritten, graph.eqns[i], plan, body)
        inner = body.remember((i, plan), make)
        eqn = graph.eqns[i]
        replaced[i] = [Splice(inner, eqn.invars, eqn.outvars)]
        (loop,) = [e for e in inner.eqns if e.primitive.name in _LOOPS]
        scratch_of[loop.outvars[0]] = (scratch_bytes or {}).get(plan.operation, 0)
    spliced = splice(graph, replaced)
    return prepare_graph(
        spliced, body.wrt, body.num_differentiated, scratch_of, body.memo
    )


def loop_bodies(eqn: JaxprEqn, body: RematGraph) -> list[RematGraph]:
    """The body of a scan or `jax.checkpoint`, or the branches of a cond, as graphs."""
    active = [bool(variables([v])) and v in body.active for v in eqn.invars]
    if eqn.primitive.name == "cond":
        return [_prepare_body(b, active[1:]) for b in eqn.params["branches"]]
    if is_checkpoint(eqn):
        return [_prepare_body(ClosedJaxpr(eqn.params["jaxpr"], ()), active)]
    # A gradient may reach the carry from any iteration, even where the initial value is
    # a constant.
    return [_prepare_body(eqn.params["jaxpr"], find_active_carry(eqn, active))]


def run_body(
    body: RematGraph, recompute: Recompute, carry: slice = slice(0)
) -> Callable[..., list[Any]]:
    """The body as a function of its inputs that recomputes itself as told.

    Args:
        body: of a scan, or a branch.
        recompute: how it is recomputed.
        carry: the inputs that are a scan's carry.
    """
    graph, size = body.graph, len(body.eqns)
    chunks = recompute.chunks or (Chunk(0, size, None),)
    check_ranges(chunks, 0, size)

    def run(*args: Any) -> list[Any]:
        env = dict(zip(graph.inputs, [*graph.const_values, *args], strict=True))
        for chunk in chunks:
            part = extract_subgraph(body, chunk.start, chunk.stop)
            go = functools.partial(_run_chunk, body, chunk)
            if chunk.kept is not None:
                policy = _SAVE_KEPT
                if where := recompute.in_host_memory:
                    moved = [v for v in graph.args[carry] if v in body.active]
                    name = _IN_HOST_NAME if where == "all" else _KEPT_NAME
                    go = functools.partial(go, moved=moved, kept_name=name)
                    policy = _SAVE_IN_HOST
                # Inside a loop or a branch nothing is merged, so no barrier is needed.
                go = jax.checkpoint(go, policy=policy, prevent_cse=False)
            env |= zip(part.outputs, go([env[v] for v in part.inputs]), strict=True)
        return graph.read_outputs(env)

    return run


def _prepare_body(jaxpr: ClosedJaxpr, active_inputs: Sequence[bool]) -> RematGraph:
    graph = trace(jaxpr_as_fun(jaxpr), list(map(shape_of, jaxpr.jaxpr.invars)))
    wrt = tuple(itertools.compress(graph.args, active_inputs))
    return prepare_graph(graph, wrt, len(graph.outputs), {})


def _run_chunk(
    body: RematGraph,
    chunk: Chunk,
    values: list[Any],
    *,
    moved: Sequence[Var] = (),
    kept_name: str = _KEPT_NAME,
) -> list[Any]:
    """Run a chunk, giving the results that it keeps a name for `jax.checkpoint`.

    The inputs `moved` are kept in the host's memory.
    """
    whole = extract_subgraph(body, chunk.start, chunk.stop)
    env = dict(zip(whole.inputs, values, strict=True))
    env |= {v: _name(env[v], _IN_HOST_NAME) for v in moved if v in env}
    kept = set(chunk.kept or ())
    edges = {chunk.start, chunk.stop, *kept, *(i + 1 for i in kept)}
    for a, b in itertools.pairwise(sorted(edges)):
        named = body.eqns[a].outvars if a in kept else ()
        part = extract_subgraph(body, a, b, also=named)
        outs = part.run(*(env[v] for v in part.inputs))
        if named:
            # The derivative must read the named value, too. `checkpoint_name` alone
            # would leave the rule of `tanh` reading the unnamed one, which makes
            # `jax.checkpoint` recompute the operation after all.
            saved = [_name(o, kept_name) for o in outs]
            active = [env[v] for v in part.active_inputs]
            passive = [env[v] for v in part.passive_inputs]
            outs = reuse_results(part.evaluate, active, passive, saved)
        env |= zip(part.outputs, outs, strict=True)
    return [env[v] for v in whole.outputs]


def _name(x: Any, name: str) -> Any:
    """Name a value for `jax.checkpoint`.

    Of a complex one its two parts: JAX 0.10.2 cannot keep it whole, since
    `reduce_precision` takes no complex numbers.
    """
    if not jnp.iscomplexobj(x):
        return checkpoint_name(x, name)
    parts = (checkpoint_name(part, name) for part in (lax.real(x), lax.imag(x)))
    return lax.complex(*parts)


def _check_operation(graph: Graph, plan: BodyPlan) -> None:
    name, params = "missing", {}
    if 0 <= plan.operation < len(graph.numbered):
        eqn = graph.eqns[graph.numbered[plan.operation]]
        name, params = eqn.primitive.name, eqn.params
    fits = False
    if name == plan.kind == "scan":
        fits = plan.group_length > 0 and params["length"] % plan.group_length == 0
    elif name == plan.kind == "cond":
        fits = len(plan.bodies) == len(params["branches"])
    for levels in [b.levels for b in plan.bodies if b.levels]:
        falling = [plan.group_length, *levels, 0]
        in_order = falling == sorted({*falling}, reverse=True)
        fits = fits and len(plan.bodies) == 1 and in_order
    if not fits or any(b.iterations < 1 for b in plan.bodies):
        raise ValueError(
            f"damaged plan: operation {plan.operation} is {name}, which cannot be "
            f"recomputed in {plan.group_length} iterations or branches. Plan again "
            "with remat.plan."
        )


def _trace_rewritten(eqn: JaxprEqn, plan: BodyPlan, body: RematGraph) -> Graph:
    """The operations that replace `eqn`."""
    inner = loop_bodies(eqn, body)
    carry = slice(0)
    if eqn.primitive.name == "scan":
        num_consts, num_carry = split_scan(eqn)
        carry = slice(num_consts, num_consts + num_carry)
    run = lambda b, r: run_body(rewrite_loops(b, r.body_plans), r, carry)
    if eqn.primitive.name == "cond":
        branches = [run(b, r) for b, r in zip(inner, plan.bodies, strict=True)]
        fn = lambda index, *args: lax.switch(index, branches, *args)
    else:
        treatments = [(run(inner[0], r), r) for r in plan.bodies]
        if levels := plan.bodies[0].levels:
            steps = ScanSteps(
                treatments[0][0],
                eqn.params["length"],
                eqn.params["reverse"],
                *split_scan(eqn),
                [v in inner[0].wrt for v in inner[0].graph.args],
            )
            is_active = [v in body.active for v in eqn.outvars]

            def fn(*args: Any) -> list[Any]:
                # The rule of its own would give all results a gradient.
                outs = scan_by_levels(steps, levels, *args)
                return [
                    out if flag or not is_inexact(v) else lax.stop_gradient(out)
                    for out, v, flag in zip(outs, eqn.outvars, is_active, strict=True)
                ]

            return trace(fn, list(map(shape_of, eqn.invars)))
        fn = functools.partial(_scan, eqn, treatments)
    return trace(fn, list(map(shape_of, eqn.invars)))


def _scan(
    eqn: JaxprEqn, treatments: Sequence[tuple[Any, Recompute]], *args: Any
) -> list[Any]:
    """Run a scan in groups of iterations, each of which gets these treatments in turn.

    A single treatment that is not `from_carry` needs no groups.
    """
    length, reverse = eqn.params["length"], eqn.params["reverse"]
    num_consts, num_carry = split_scan(eqn)
    consts = args[:num_consts]
    start = list(args[num_consts : num_consts + num_carry])
    xs = list(args[num_consts + num_carry :])

    def loop(run: Any, iterations: int, carry: list[Any], x: list[Any]) -> Any:
        def one(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            outs = run(*consts, *carry, *x)
            return outs[:num_carry], outs[num_carry:]

        unroll = min(eqn.params["unroll"], iterations)
        return lax.scan(one, carry, x, iterations, reverse=reverse, unroll=unroll)

    (first_run, first), *more = treatments
    if not (more or first.from_carry):
        carry, ys = loop(first_run, length, start, xs)
        return [*carry, *ys]

    def treat(run: Any, recompute: Recompute, begin: int) -> Any:
        rows = slice(begin, begin + recompute.iterations)

        def go(carry: list[Any], x: list[Any]) -> Any:
            return loop(run, recompute.iterations, carry, [leaf[rows] for leaf in x])

        # The rows are sliced inside of a checkpoint. Outside, the slices would be
        # saved: copies of arrays that are there already. But a checkpoint that saves
        # results cannot contain one that saves fewer, hence none around the last case.
        if recompute.from_carry:
            return jax.checkpoint(go, prevent_cse=False)
        if not recompute.chunks:
            return jax.checkpoint(go, prevent_cse=False, policy=_save_all_but_slices)
        return go

    ends = list(itertools.accumulate(r.iterations for _, r in treatments))
    group = ends[-1]
    parts = [
        treat(run, recompute, end - recompute.iterations)
        for (run, recompute), end in zip(treatments, ends, strict=True)
    ]
    if reverse:
        # A reversed scan starts at the last iterations; results are put in order below.
        parts.reverse()

    def run_group(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        outs: list[list[Any]] = []
        for go in parts:
            carry, ys = go(carry, x)
            outs.append(ys)
        if reverse:
            outs.reverse()
        return carry, [jnp.concatenate(ys) for ys in zip(*outs, strict=True)]

    groups = length // group
    split = [x.reshape(groups, group, *x.shape[1:]) for x in xs]
    carry, ys = lax.scan(run_group, start, split, groups, reverse=reverse)
    return [*carry, *(y.reshape(length, *y.shape[2:]) for y in ys)]


def _save_all_but_slices(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name != "slice"
