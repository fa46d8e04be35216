"""Run the operations that only frames (recorded arrays) need in a `lax.cond`, when due.

Everything else stays outside the gate, so no state is copied.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from frugax.jaxprs import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    jaxpr_as_fun,
    shape_of,
    trace,
    variables,
)


def run_gated(
    fn: Callable[..., tuple[Any, Any]],
    args: Sequence[Any],
    due: jax.Array,
    otherwise: Callable[[Any], Any],
) -> tuple[Any, Any]:
    """Run a function whose second result is wanted only sometimes."""
    # `trace` inlines calls, since a call may contain operations for frames only.
    graph = trace(fn, args)
    always, sometimes = jax.tree.unflatten(graph.out_tree, graph.outputs)
    wanted, gated = jax.tree.leaves(always), jax.tree.leaves(sometimes)
    program, count = graph.jaxpr, len(wanted)
    values = [*graph.const_values, *jax.tree.leaves(args)]
    first, second = _split_program(program, wanted)
    produced = {v for e in first for v in e.outvars}
    inputs = list(graph.inputs)
    # The gated part reads values of the first part and inputs of the program.
    reads = dict.fromkeys(v for e in second for v in variables(e.invars))
    reads |= dict.fromkeys(variables(gated))
    after = {v for e in second for v in e.outvars}
    needed = [v for v in reads if v not in after]
    passed = [v for v in needed if v in produced]

    always_part = _make_function(program, first, inputs, [*wanted, *passed])
    outs = always_part(*values)
    env: dict[Var, Any] = dict(zip(inputs, values, strict=True))
    env |= zip(passed, outs[count:], strict=True)
    tree = jax.tree.structure(sometimes)
    known = [v for v in gated if not isinstance(v, Literal)]
    gated_part = _make_function(program, second, needed, known)

    def run(*inputs: Any) -> Any:
        computed = iter(gated_part(*inputs))
        flat = [v.val if isinstance(v, Literal) else next(computed) for v in gated]
        return jax.tree.unflatten(tree, flat)

    def skip(*_: Any) -> Any:
        return otherwise(jax.tree.map(shape_of, sometimes))

    # XLA executes one branch of a `cond` only, as long as no `vmap` turns it into a
    # `select`, which would compute both.
    second_result = lax.cond(due, run, skip, *(env[v] for v in needed))
    first_result = jax.tree.unflatten(jax.tree.structure(always), outs[:count])
    return first_result, second_result


def _split_program(
    program: Jaxpr, wanted: Sequence[Any]
) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """Separate the operations that are wanted or have an effect from the others."""
    needed = set(variables(wanted))
    first: list[JaxprEqn] = []
    second: list[JaxprEqn] = []
    # Backwards, so that every reader of a value is known before the operation that
    # makes it.
    for eqn in reversed(program.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(variables(eqn.invars))
            first.append(eqn)
        else:
            second.append(eqn)
    return first[::-1], second[::-1]


def _make_function(
    program: Jaxpr, eqns: list[JaxprEqn], inputs: Sequence[Var], outputs: Sequence[Any]
) -> Callable[..., list[Any]]:
    part = program.replace(
        constvars=[], invars=list(inputs), outvars=list(outputs), eqns=eqns
    )
    return jaxpr_as_fun(ClosedJaxpr(part, ()))
