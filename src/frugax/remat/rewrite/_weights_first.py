"""Put the gradients of weights first in the backward pass of a recomputed segment.

The gradient of a weight is a product of an activation and a cotangent. Nothing else of
the segment waits for it, so compilers like to postpone it, or to start the products
after it at the same time, and the activation stays alive for that. Here each such
product comes as soon as its operands are there, and the next product waits for it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from frugax.jaxprs import (
    Graph,
    JaxprEqn,
    Var,
    bytes_of,
    is_heavy,
    variables,
)

from ._active import is_inexact
from ._gates import Gate, opaque_true, wait_at_barrier, wait_for


def run_weights_first(graph: Graph, live: Any, gate: Gate) -> Callable[..., list[Any]]:
    """The program `live` as a function, in which gradients of weights come first.

    Args:
        graph: what `live` was made from by removing dead code.
        live: straight-line operations.
        gate: how a product is made to wait.
    """
    eqns = _sort(live.eqns)
    ties = _find_ties(eqns, variables(live.outvars))

    def run(*values: Any) -> list[Any]:
        env: dict[Var, Any] = dict(zip(live.invars, values, strict=True))
        local = dict[Var, Any]()
        for i, e in enumerate(eqns):
            reads = list(dict.fromkeys(variables(e.invars)))
            local = {v: env[v] for v in reads}
            if i in ties:
                before, operand = ties[i]
                arrived = env[before]
                if gate == "barrier":
                    (local[operand],), (env[before],) = wait_at_barrier(
                        [local[operand]], [arrived]
                    )
                else:
                    local[operand] = wait_for(opaque_true([arrived]), local[operand])
            outs = graph.run([e], reads, e.outvars)(*(local[v] for v in reads))
            env |= zip(e.outvars, outs, strict=True)
        return [env[v] if variables([v]) else v.val for v in live.outvars]

    return run


def _sort(eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """The same operations; products that no other product needs as early as can be."""
    leads_to_heavy: set[Var] = set()
    last: set[int] = set()  # products that lead to no other product
    for i in reversed(range(len(eqns))):
        e = eqns[i]
        leads = bool(leads_to_heavy & set(e.outvars))
        if is_heavy(e) and not leads:
            last.add(i)
        if is_heavy(e) or leads:
            leads_to_heavy |= set(variables(e.invars))
    made_by = {v: i for i, e in enumerate(eqns) for v in e.outvars}
    placed: set[int] = set()
    found: list[JaxprEqn] = []

    def sources(i: int) -> list[int] | None:
        """Operations to place before the i-th; None if a product is among them."""
        wanted, pending = {i}, [i]
        while pending:
            for v in variables(eqns[pending.pop()].invars):
                j = made_by.get(v)
                if j is None or j in placed or j in wanted:
                    continue
                if is_heavy(eqns[j]):
                    return None
                wanted.add(j)
                pending.append(j)
        return sorted(wanted)

    def place(several: Sequence[int]) -> None:
        found.extend(eqns[j] for j in several if j not in placed)
        placed.update(several)

    for i, e in enumerate(eqns):
        if i in placed:
            continue
        if is_heavy(e):
            for j in sorted(last - placed):
                if j > i and (ready := sources(j)):
                    place(ready)
        place([i])
    return found


def _find_ties(
    eqns: Sequence[JaxprEqn], results: Sequence[Var]
) -> dict[int, tuple[Var, Var]]:
    """By operation, the variable that it waits for, and its input that does."""
    last_use = {v: i for i, e in enumerate(eqns) for v in variables(e.invars)}
    last_use |= dict.fromkeys(results, len(eqns))
    after: dict[Var, set[int]] = {}
    ties: dict[int, tuple[Var, Var]] = {}
    heavy: list[int] = []
    for i, e in enumerate(eqns):
        depends = set().union(*(after.get(v, ()) for v in variables(e.invars)))
        if is_heavy(e):
            if heavy and heavy[-1] not in depends:
                before = eqns[heavy[-1]]
                freed = sum(
                    bytes_of(v)
                    for v in {*variables(before.invars)}
                    if last_use[v] == heavy[-1]
                )
                operand = min(
                    (v for v in variables(e.invars) if is_inexact(v)),
                    key=bytes_of,
                    default=None,
                )
                if operand is not None and bytes_of(operand) < freed:
                    ties[i] = before.outvars[0], operand
            heavy.append(i)
            depends = depends | {i}
        after |= dict.fromkeys(e.outvars, depends)
    return ties
