"""Split an operation with a derivative rule of its own into its two passes.

The rule is traced at the full batch, with gradients for those operands only that are
differentiated where the operation stands.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import (
    Graph,
    JaxprEqn,
    Var,
    shape_of,
    trace,
    variables,
)

from ._batch_rules import bind


def has_custom_rule(eqn: JaxprEqn) -> bool:
    """Whether an operation is a `custom_jvp` or `custom_vjp`.

    JAX's `custom_linear_solve`, as in `jnp.linalg.solve`, is an operation of another
    kind.
    """
    return eqn.primitive.name.startswith(("custom_jvp", "custom_vjp"))


@dataclasses.dataclass(frozen=True, slots=True)
class CustomRule:
    """The two passes of a `custom_jvp` or `custom_vjp`, as one traced program.

    Attributes:
        graph: the program. Its arguments are `operands` and `cotangents`.
        operands: the variables of the operands.
        cotangents: those of the cotangents of the results in `inexact`.
        results: the results of the operation, in its own order.
        gradients: those of the operands in `differentiated`.
        differentiated: positions of operands.
        inexact: positions of results that have cotangents.
        forward: the operations of the forward pass.
        backward: those that depend on a cotangent.
        residuals: the values that the forward pass saves for the backward pass.
    """

    graph: Graph
    operands: Sequence[Var]
    cotangents: Sequence[Var]
    results: Sequence[Any]
    gradients: Sequence[Any]
    differentiated: Sequence[int]
    inexact: Sequence[int]
    forward: Sequence[JaxprEqn]
    backward: Sequence[JaxprEqn]
    residuals: Sequence[Var]


def split_rule(eqn: JaxprEqn, perturbed: Sequence[bool]) -> CustomRule:
    """Trace the rule of an operation and split it into forward and backward pass.

    Args:
        eqn: a `custom_jvp_call` or `custom_vjp_call`.
        perturbed: whether each operand depends on differentiated arguments.
    """
    is_inexact = lambda v: jnp.issubdtype(shape_of(v).dtype, jnp.inexact)
    moved = [i for i, v in enumerate(eqn.invars) if perturbed[i] and is_inexact(v)]
    inexact = [i for i, v in enumerate(eqn.outvars) if is_inexact(v)]
    exact = [i for i in range(len(eqn.outvars)) if i not in inexact]

    def forward_and_back(xs: Any, cotangents: Any) -> Any:
        def split(*some: Any) -> Any:
            full = list(xs)
            for i, x in zip(moved, some, strict=True):
                full[i] = x
            outs = bind(eqn, full)
            return [outs[i] for i in inexact], [outs[i] for i in exact]

        outs, pull, rest = jax.vjp(split, *(xs[i] for i in moved), has_aux=True)
        return outs, rest, list(pull(cotangents))

    given = [shape_of(eqn.outvars[i]) for i in inexact]
    graph = trace(forward_and_back, (list(map(shape_of, eqn.invars)), given))
    operands, cotangents = graph.args[: len(eqn.invars)], graph.args[len(eqn.invars) :]
    places = [*inexact, *exact]
    gradients = graph.outputs[len(places) :]
    reached = set(cotangents)
    forward, backward = [], []
    for e in graph.eqns:
        if reached & set(variables(e.invars)):
            reached |= set(e.outvars)
            backward.append(e)
        else:
            forward.append(e)
    read = {v for e in backward for v in variables(e.invars)}
    read |= set(variables(gradients))
    saved = [v for v in dict.fromkeys(graph.defined_at) if v in read - reached]
    return CustomRule(
        graph=graph,
        operands=operands,
        cotangents=cotangents,
        results=[graph.outputs[places.index(i)] for i in range(len(places))],
        gradients=gradients,
        differentiated=moved,
        inexact=inexact,
        forward=forward,
        backward=backward,
        residuals=[v for v in saved if v not in graph.consts],
    )
