"""The part of a program that only its frames need, put behind a gate.

A frame may be dear to make. Where it is not due, what leads to it and to nothing else
is not run; what the program needs anyway is outside the gate, so no state is copied.
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
    """Run a function of which the second result is wanted only sometimes.

    Args:
        fn: gives what is always wanted, and what is wanted where `due`.
        args: its arguments, arrays or pytrees of them.
        due: bool, `()`.
        otherwise: from the second result's shapes, what to give in its place.

    Returns:
        Both results of `fn`.
    """
    # Calls are opened: what only frames need may be inside of one.
    graph = trace(fn, args)
    always, sometimes = jax.tree.unflatten(graph.out_tree, graph.outputs)
    wanted, gated = jax.tree.leaves(always), jax.tree.leaves(sometimes)
    program, count = graph.jaxpr, len(wanted)
    values = [*graph.const_values, *jax.tree.leaves(args)]
    first, second = _parted(program, wanted)
    made = {v for e in first for v in e.outvars}
    inputs = list(graph.inputs)
    reads = dict.fromkeys(v for e in second for v in variables(e.invars))
    reads |= dict.fromkeys(variables(gated))
    after = {v for e in second for v in e.outvars}
    needed = [v for v in reads if v not in after]
    passed = [v for v in needed if v in made]

    part = _function(program, first, inputs, [*wanted, *passed])
    outs = part(*values)
    env: dict[Var, Any] = dict(zip(inputs, values, strict=True))
    env |= zip(passed, outs[count:], strict=True)
    tree = jax.tree.structure(sometimes)
    known = [v for v in gated if not isinstance(v, Literal)]
    make = _function(program, second, needed, known)

    def run(*given: Any) -> Any:
        made = iter(make(*given))
        flat = [v.val if isinstance(v, Literal) else next(made) for v in gated]
        return jax.tree.unflatten(tree, flat)

    def leave(*_: Any) -> Any:
        return otherwise(jax.tree.map(shape_of, sometimes))

    seldom = lax.cond(due, run, leave, *(env[v] for v in needed))
    return jax.tree.unflatten(jax.tree.structure(always), outs[:count]), seldom


def _parted(
    program: Jaxpr, wanted: Sequence[Any]
) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """The operations that lead to what is wanted, or have an effect; the others."""
    needed = set(variables(wanted))
    first: list[JaxprEqn] = []
    second: list[JaxprEqn] = []
    for eqn in reversed(program.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(variables(eqn.invars))
            first.append(eqn)
        else:
            second.append(eqn)
    return first[::-1], second[::-1]


def _function(
    program: Jaxpr, eqns: list[JaxprEqn], inputs: Sequence[Var], outputs: Sequence[Any]
) -> Callable[..., list[Any]]:
    part = program.replace(
        constvars=[], invars=list(inputs), outvars=list(outputs), eqns=eqns
    )
    return jaxpr_as_fun(ClosedJaxpr(part, ()))
