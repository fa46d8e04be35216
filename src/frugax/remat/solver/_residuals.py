"""What the backward pass will want from each operation of the forward pass.

Reads: a `Graph` and which of its inputs are differentiated. Gives: for every active
operation, the variables that its own backward rule reads. Everything the planner
knows about residuals comes from here; XLA's measurement has the last word.
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


@dataclasses.dataclass(frozen=True, slots=True)
class Residuals:
    """What the backward rule of one operation reads.

    Attributes:
        variables: inputs and outputs of the operation, as the graph names them.
        hidden_bytes: residuals that are neither, such as what a loop saves in each
            of its rounds; to have them again the operation must run again.
    """

    variables: frozenset[Var]
    hidden_bytes: int


def find_residuals(
    graph: Graph, active: frozenset[Var], known: dict[Any, Any] | None = None
) -> list[Residuals]:
    """What the backward rule of each operation reads; nothing for inactive ones.

    What is asked is kept in `known`, and asked but once.
    """
    known = {} if known is None else known
    found: list[Residuals] = []
    for eqn in graph.eqns:
        if not any(v in active for v in eqn.outvars):
            found.append(Residuals(frozenset(), 0))
            continue
        key = _key(eqn, active)
        if key not in known:
            # The parameters stay alive with what is known of them, and so their id.
            known[key] = _ask(graph, eqn, active), eqn.params
        (places, hidden), _ = known[key]
        atoms = [*eqn.invars, *eqn.outvars]
        found.append(Residuals(frozenset(variables(atoms[p] for p in places)), hidden))
    return found


def _key(eqn: JaxprEqn, active: frozenset[Var]) -> tuple[object, ...]:
    shapes = tuple(str(v.aval) for v in eqn.invars)
    literal = tuple(not variables([v]) for v in eqn.invars)
    moving = tuple(bool(variables([v])) and v in active for v in eqn.invars)
    # Those with a body differ in ways that no short text tells.
    params = id(eqn.params) if _has_body(eqn) else str(eqn.params)
    return eqn.primitive.name, shapes, literal, moving, params


def _has_body(eqn: JaxprEqn) -> bool:
    return any("jaxpr" in name or name == "branches" for name in eqn.params)


def _ask(
    graph: Graph, eqn: JaxprEqn, active: frozenset[Var]
) -> tuple[frozenset[int], int]:
    """Which places of (inputs, outputs) the rule reads, and its hidden bytes."""
    inputs = list(dict.fromkeys(variables(eqn.invars)))
    moving = [v for v in inputs if v in active]
    run = graph.run([eqn], inputs, eqn.outvars)
    is_out = [v in active for v in eqn.outvars]

    def both(values: list[Any], cotangents: list[Any]) -> tuple[Any, Any]:
        given = dict(zip(inputs, values, strict=True))

        def active_outs(*moved: Any) -> tuple[list[Any], list[Any]]:
            here = given | dict(zip(moving, moved, strict=True))
            outs = run(*(here[v] for v in inputs))
            pairs = list(zip(outs, is_out, strict=True))
            return [o for o, a in pairs if a], [o for o, a in pairs if not a]

        primals = [given[v] for v in moving]
        outs, pull, rest = jax.vjp(active_outs, *primals, has_aux=True)
        return (outs, rest), pull(cotangents)

    outs = [v for v in eqn.outvars if v in active]
    inner = trace(both, (list(map(shape_of, inputs)), list(map(shape_of, outs))))
    backward = set(inner.args[len(inputs) :])
    read: dict[Var, None] = {}
    for e in inner.eqns:
        if any(v in backward for v in variables(e.invars)):
            backward |= set(e.outvars)
            read |= dict.fromkeys(v for v in variables(e.invars) if v not in backward)

    rest = [v for v in eqn.outvars if v not in active]
    place_of = dict(zip(inner.args, map(eqn.invars.index, inputs), strict=False))
    made = zip(inner.outputs, [*outs, *rest], strict=False)
    for atom, v in made:
        if variables([atom]):
            place_of.setdefault(atom, len(eqn.invars) + eqn.outvars.index(v))
    return _walk_back(inner, list(read), place_of)


def _walk_back(
    inner: Graph, residuals: list[Var], place_of: dict[Var, int]
) -> tuple[frozenset[int], int]:
    """Replace each residual by what it can be made from again at next to no cost."""
    places: set[int] = set()
    hidden = 0
    pending, seen = list(residuals), set(residuals)
    while pending:
        v = pending.pop()
        if v in place_of:
            places.add(place_of[v])
            continue
        if inner.defined_at[v] < 0:
            continue  # a constant
        eqn = inner.eqns[inner.defined_at[v]]
        if is_heavy(eqn) or eqn.primitive.name in ("scan", "while", "cond"):
            # Made by work that is worth counting: it is saved, or all is run again.
            hidden += bytes_of(v)
            continue
        before = [u for u in variables(eqn.invars) if u not in seen]
        seen |= set(before)
        pending += before
    return frozenset(places), hidden
