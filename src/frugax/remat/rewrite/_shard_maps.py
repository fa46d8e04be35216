"""Plan the body of a `jax.shard_map`: each device recomputes parts of its own share.

The planned body is one function with a backward rule of its own. JAX carries the values
that it saves from the forward to the backward pass, device by device, and adds up the
gradients of inputs that all devices share, as it does without a plan.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import Partial

from frugax.jaxprs import (
    MARKS,
    ClosedJaxpr,
    JaxprEqn,
    Var,
    flatten,
    flops_of,
    shape_of,
    trace,
    variables,
)

from .._plan import Segment
from ._active import is_inexact
from ._backward import pull_tape, record_tape
from ._graph import RematGraph, Splice, prepare_graph, splice

# A `shard_map` with a smaller share of all flops is planned like any other operation.
_LARGE_SHARE = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class ShardBody:
    """The body of a `shard_map`, prepared for planning.

    Attributes:
        graph: the body without its marks of inputs. Its inputs are those of the
            `shard_map`, on one device, and the marked ones. Its differentiated outputs
            come first.
        marks: operations that mark an input as different on each device. They stay
            outside of the plan, so that gradients are added up over devices once.
        order: the position in the results of the `shard_map` of each output.
    """

    graph: RematGraph
    marks: tuple[JaxprEqn, ...]
    order: tuple[int, ...]


def find_shard_map(body: RematGraph) -> int | None:
    """The number of the `shard_map` that does most of the loss's work, or None."""
    eqns = [body.graph.eqns[i] for i in body.graph.numbered]
    work = list(map(flops_of, eqns))
    most = max(range(len(eqns)), key=work.__getitem__, default=None)
    if most is None or eqns[most].primitive.name != "shard_map" or eqns[most].effects:
        return None
    is_active = any(v in body.active for v in eqns[most].outvars)
    return most if is_active and work[most] >= _LARGE_SHARE * sum(work) else None


def prepare_shard_body(body: RematGraph, operation: int) -> ShardBody:
    """The body of this `shard_map`, with the active inputs and outputs of the loss."""
    eqn = _find_operation(body, operation)
    graph = flatten(ClosedJaxpr(eqn.params["jaxpr"], ()))
    pairs = zip(graph.args, eqn.invars, strict=True)
    wrt = [a for a, v in pairs if variables([v]) and v in body.active]
    marked: dict[object, JaxprEqn] = {}
    renamed: dict[Var, Var] = {}
    rest: list[JaxprEqn] = []
    for e in graph.eqns:
        if e.primitive.name in MARKS and e.invars[0] in graph.args:
            # One mark serves all readers.
            first = marked.setdefault((e.invars[0], str(e.params)), e)
            renamed[e.outvars[0]] = first.outvars[0]
            continue
        atoms: list[Any] = list(e.invars)
        invars: list[Any] = [renamed.get(v, v) if variables([v]) else v for v in atoms]
        rest.append(e.replace(invars=invars))
    marks = tuple(marked.values())
    wrt += [e.outvars[0] for e in marks if e.invars[0] in wrt]
    is_active = [v in body.active for v in eqn.outvars]
    order = sorted(range(len(is_active)), key=lambda i: not is_active[i])
    outputs: list[Any] = [graph.outputs[i] for i in order]
    core = dataclasses.replace(
        graph,
        eqns=tuple(rest),
        args=(*graph.args, *(e.outvars[0] for e in marks)),
        outputs=tuple(renamed.get(v, v) if variables([v]) else v for v in outputs),
        out_tree=None,
    )
    prepared = prepare_graph(core, tuple(filter(is_inexact, wrt)), sum(is_active), {})
    return ShardBody(prepared, marks, tuple(order))


def call_inside(body: RematGraph, operation: int, fn: Callable[[], Any]) -> Any:
    """Call `fn` where the axes of this `shard_map` are known, as its body is called."""
    eqn = _find_operation(body, operation)
    run = flatten(ClosedJaxpr(eqn.params["jaxpr"], ()))
    found: list[Any] = []

    def call_and_run(*args: Any) -> list[Any]:
        found.append(fn())
        return run.run(run.eqns, run.args, run.outputs)(*args)

    jax.eval_shape(_rebuild(eqn, call_and_run), *map(shape_of, eqn.invars))
    return found[0]


def plan_shard_map(
    body: RematGraph,
    operation: int,
    plan: Callable[[RematGraph], tuple[RematGraph, Sequence[Segment]]],
) -> RematGraph:
    """The same loss, in which the body of this `shard_map` follows a plan."""
    eqn = _find_operation(body, operation)
    inside = prepare_shard_body(body, operation)

    def run(*args: Any) -> list[Any]:
        values = list(args)
        for e in inside.marks:
            at = inside.graph.graph.args.index(e.invars[0])
            mark = inside.graph.graph.run([e], variables(e.invars), e.outvars)
            values += mark(args[at])
        outs = _with_rule(*plan(inside.graph))(*values)
        by_place = dict(zip(inside.order, outs, strict=True))
        return [by_place[i] for i in range(len(outs))]

    new = trace(_rebuild(eqn, run), list(map(shape_of, eqn.invars)))
    at = {body.graph.numbered[operation]: [Splice(new, eqn.invars, eqn.outvars)]}
    spliced = splice(body.graph, at)
    return prepare_graph(spliced, body.wrt, body.num_differentiated, {}, body.memo)


def _with_rule(
    body: RematGraph, segments: Sequence[Segment]
) -> Callable[..., list[Any]]:
    """The body as a function whose backward pass follows these segments."""
    graph = body.graph

    @jax.custom_vjp
    def call(*args: Any) -> list[Any]:
        return graph.run(graph.eqns, graph.inputs, graph.outputs)(*args)

    def forward(*args: Any) -> tuple[list[Any], Any]:
        env = dict(zip(graph.inputs, args, strict=True))
        tape = record_tape(body, segments, env)
        # Segments share values, each of which is saved once.
        leaves, tree = jax.tree.flatten([pull_back for _, pull_back in tape])
        saved = {id(x): x for x in leaves}
        places = [list(saved).index(id(x)) for x in leaves]
        unpack = lambda values: jax.tree.unflatten(tree, [values[i] for i in places])
        parts = [part for part, _ in tape]
        rest = Partial(
            functools.partial(_join_tape, parts, unpack), list(saved.values())
        )
        return graph.read_outputs(env), rest

    def backward(rest: Any, cotangents: list[Any]) -> tuple[Any, ...]:
        found = dict(zip(body.wrt, pull_tape(body, rest(), cotangents), strict=True))
        return tuple(found.get(v) for v in graph.inputs)

    call.defvjp(forward, backward)
    return lambda *args: call(*graph.const_values, *args)


def _join_tape(parts: list[Any], unpack: Callable[..., Any], saved: list[Any]) -> Any:
    return list(zip(parts, unpack(saved), strict=True))


def _find_operation(body: RematGraph, operation: int) -> JaxprEqn:
    numbered, name = body.graph.numbered, "missing"
    if 0 <= operation < len(numbered):
        eqn = body.graph.eqns[numbered[operation]]
        if eqn.primitive.name == "shard_map":
            return eqn
        name = eqn.primitive.name
    raise ValueError(
        f"damaged plan: operation {operation} is {name}, not a shard_map. Plan again "
        "with remat.plan."
    )


def _rebuild(eqn: JaxprEqn, fn: Callable[..., list[Any]]) -> Callable[..., Any]:
    """The same `shard_map` with another body."""
    return jax.shard_map(
        lambda *args: tuple(fn(*args)),
        mesh=eqn.params["mesh"],
        in_specs=eqn.params["in_specs"],
        out_specs=eqn.params["out_specs"],
        check_vma=eqn.params["check_vma"],
        axis_names=set(eqn.params["newly_manual_axes"]),
    )
