"""Find the variables of a program through which gradients flow, as JAX finds them.

Some operations refuse to be differentiated, or do other work where they are, such as
the loops of differential equation solvers. So they must be differentiated for those
operands only for which JAX would do it.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import (
    ClosedJaxpr,
    Graph,
    Jaxpr,
    JaxprEqn,
    Var,
    remove_dead_code,
    shape_of,
    split_scan,
    trace,
    variables,
)

# Operations whose inputs and results are those of their `jaxpr`, one by one.
_CALLS = frozenset({"jit", "pjit", "closed_call", "checkpoint", "remat2", "shard_map"})


def active_variables(
    graph: Graph, inputs: Sequence[Var], outputs: Sequence[Any]
) -> frozenset[Var]:
    """The variables through which gradients of `outputs` reach `inputs`.

    Integers, booleans and random keys stop a gradient. A variable that leads to other
    results only, such as a metric, is not active.
    """
    # Forward from the inputs, then back from the outputs: a variable is active if
    # both walks reach it.
    reached = {v for v in inputs if is_inexact(v)}
    _reach(graph.eqns, reached)
    leading = set(variables(outputs))
    for eqn in reversed(graph.eqns):
        if eqn.primitive.name != "stop_gradient" and leading & set(eqn.outvars):
            leading |= _find_sources(graph, eqn, reached, leading)
    return frozenset(reached & leading)


def _find_sources(
    graph: Graph, eqn: JaxprEqn, reached: set[Var], leading: set[Var]
) -> set[Var]:
    """The inputs of an operation to which its results in `leading` send gradients.

    A `custom_jvp` of several values may hand each through by itself, as
    `equinox.error_if` does. The operation before one of them may refuse any gradient.
    """
    inputs = list(dict.fromkeys(variables(eqn.invars)))
    wanted = [v for v in eqn.outvars if v in leading]
    if eqn.primitive.name != "custom_jvp_call" or len(wanted) == len(eqn.outvars):
        return set(inputs)
    moved = [v for v in inputs if v in reached]
    run = graph.run([eqn], inputs, list(filter(is_inexact, wanted)))

    def push_forward(values: list[Any], tangents: list[Any]) -> list[Any]:
        env = dict(zip(inputs, values, strict=True))

        def of_moved(*some: Any) -> list[Any]:
            given = env | dict(zip(moved, some, strict=True))
            return run(*(given[v] for v in inputs))

        return jax.jvp(of_moved, [env[v] for v in moved], tangents)[1]

    shapes = [list(map(shape_of, vs)) for vs in (inputs, moved)]
    rule = trace(push_forward, shapes)
    _, used = remove_dead_code(rule.jaxpr, [True] * len(rule.outputs))
    return set(itertools.compress(moved, used[len(used) - len(moved) :]))


def find_active_carry(eqn: JaxprEqn, active: Sequence[bool]) -> list[bool]:
    """Which inputs of a scan's body gradients reach, in any of its iterations.

    Args:
        eqn: the scan.
        active: which of its inputs they reach.
    """
    num_consts, num_carry = split_scan(eqn)
    carry = slice(num_consts, num_consts + num_carry)
    return _repeat(eqn.params["jaxpr"].jaxpr, list(active), carry)


def is_inexact(var: Any) -> bool:
    """Whether gradients can flow through this variable."""
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)


def _reach(eqns: Sequence[JaxprEqn], reached: set[Var]) -> None:
    """Add the variables that depend on those in `reached`."""
    for eqn in eqns:
        if eqn.primitive.name == "stop_gradient":
            continue
        flags = [bool(variables([v])) and v in reached for v in eqn.invars]
        if any(flags):
            found = zip(eqn.outvars, _results(eqn, flags), strict=True)
            reached |= {v for v, flag in found if flag and is_inexact(v)}


def _results(eqn: JaxprEqn, flags: Sequence[bool]) -> list[bool]:
    """Which results of an operation depend on the inputs with a flag."""
    params, name = eqn.params, eqn.primitive.name
    if name in _CALLS:
        return _outputs(_open(params["jaxpr"]), flags)
    if name == "cond":
        branches = [_outputs(b.jaxpr, flags[1:]) for b in params["branches"]]
        return list(map(any, zip(*branches, strict=True)))
    if name == "scan":
        return _outputs(params["jaxpr"].jaxpr, find_active_carry(eqn, flags))
    if name == "while":
        count = params["cond_nconsts"]
        inner = flags[count:]
        carry = slice(params["body_nconsts"], len(inner))
        return _repeat(params["body_jaxpr"].jaxpr, list(inner), carry)[carry]
    # Others, such as rules of the user's own, are differentiated as a whole.
    return [True] * len(eqn.outvars)


def _open(jaxpr: Any) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _outputs(jaxpr: Jaxpr, flags: Sequence[bool]) -> list[bool]:
    reached = {v for v, flag in zip(jaxpr.invars, flags, strict=True) if flag}
    reached = set(filter(is_inexact, reached))
    _reach(jaxpr.eqns, reached)
    return [bool(variables([v])) and v in reached for v in jaxpr.outvars]


def _repeat(jaxpr: Jaxpr, flags: list[bool], carry: slice) -> list[bool]:
    """The flags of a loop's body after any number of iterations."""
    while True:
        outs = _outputs(jaxpr, flags)[: carry.stop - carry.start]
        both = list(map(any, zip(flags[carry], outs, strict=True)))
        if both == flags[carry]:
            return flags
        flags[carry] = both
