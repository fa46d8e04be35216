"""Find the residuals of each operation: the values that its backward rule reads.

Everything that the solver knows about residuals comes from here. It is a model of
automatic differentiation, not of the compiler: XLA's measurement has the last word.
"""

import dataclasses
from typing import Any

import jax

from frugax.jaxprs import (
    Graph,
    JaxprEqn,
    Var,
    bytes_of,
    is_heavy,
    shape_of,
    trace,
    variables,
)

from ..rewrite import TracedParts

# Positions in (inputs, outputs) of an operation, and bytes of hidden residuals.
_Reads = tuple[frozenset[int], int]


@dataclasses.dataclass(frozen=True, slots=True)
class Residuals:
    """The values that the backward rule of one operation reads.

    Attributes:
        variables: inputs and outputs of the operation, as the graph names them.
        hidden_bytes: bytes of residuals that are neither, such as the values that a
            loop saves in each iteration; only running the whole operation again brings
            them back.
    """

    variables: frozenset[Var]
    hidden_bytes: int


def find_residuals(
    graph: Graph, active: frozenset[Var], memo: dict[Any, Any] | None = None
) -> list[Residuals]:
    """The residuals of each operation; inactive operations have none."""
    memo = {} if memo is None else memo
    traced = memo.setdefault("traced", TracedParts())
    found: list[Residuals] = []
    for eqn in graph.eqns:
        if not any(v in active for v in eqn.outvars):
            found.append(Residuals(frozenset(), 0))
            continue
        atoms = [*eqn.invars, *eqn.outvars]
        number = {v: i for i, v in enumerate(variables(atoms))}
        moved = tuple(v in active for v in number)
        key = "residuals", traced.describe([eqn], number), moved
        if key not in memo:
            memo[key] = _trace_rule(graph, eqn, active)
        positions, hidden_bytes = memo[key]
        read = frozenset(variables(atoms[p] for p in positions))
        found.append(Residuals(read, hidden_bytes))
    return found


def _trace_rule(graph: Graph, eqn: JaxprEqn, active: frozenset[Var]) -> _Reads:
    """Trace the rule of one operation, and see which values its backward part keeps."""
    inputs = list(dict.fromkeys(variables(eqn.invars)))
    active_inputs = [v for v in inputs if v in active]
    active_outputs = [v for v in eqn.outvars if v in active]
    other_outputs = [v for v in eqn.outvars if v not in active]
    run = graph.run([eqn], inputs, [*active_outputs, *other_outputs])

    def forward(values: list[Any]) -> tuple[list[Any], list[Any]]:
        env = dict(zip(inputs, values, strict=True))

        def split_outputs(*moved: Any) -> tuple[list[Any], list[Any]]:
            local = env | dict(zip(active_inputs, moved, strict=True))
            outs = run(*(local[v] for v in inputs))
            return outs[: len(active_outputs)], outs[len(active_outputs) :]

        # `has_aux` keeps results without gradients out of the differentiation.
        primals = [env[v] for v in active_inputs]
        outs, pull_back, rest = jax.vjp(split_outputs, *primals, has_aux=True)
        return [*outs, *rest], jax.tree.leaves(pull_back)

    inner = trace(forward, [list(map(shape_of, inputs))])
    count = len(active_outputs) + len(other_outputs)
    read = dict.fromkeys(variables(inner.outputs[count:]))

    positions = dict(zip(inner.args, map(eqn.invars.index, inputs), strict=False))
    outvars = [*active_outputs, *other_outputs]
    for atom, v in zip(inner.outputs, outvars, strict=False):
        if variables([atom]):
            # An output that is an input as well counts as the input.
            positions.setdefault(atom, len(eqn.invars) + eqn.outvars.index(v))
    return _trace_to_source(inner, list(read), positions)


def _trace_to_source(
    inner: Graph, residuals: list[Var], positions: dict[Var, int]
) -> _Reads:
    """Replace residuals by the inputs and outputs that they cheaply follow from."""
    found: set[int] = set()
    hidden_bytes = 0
    pending, seen = list(residuals), set(residuals)
    while pending:
        v = pending.pop()
        if v in positions:
            found.add(positions[v])
            continue
        if inner.defined_at[v] < 0:
            continue  # a constant
        eqn = inner.eqns[inner.defined_at[v]]
        if is_heavy(eqn) or eqn.primitive.name in ("scan", "while", "cond"):
            # The work behind it is worth counting: either it is saved, or the whole
            # operation runs again.
            hidden_bytes += bytes_of(v)
            continue
        before = [u for u in variables(eqn.invars) if u not in seen]
        seen |= set(before)
        pending += before
    return frozenset(found), hidden_bytes
