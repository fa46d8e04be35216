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


@dataclasses.dataclass(frozen=True, slots=True)
class CustomRule:
    """The two passes of a `custom_jvp` or `custom_vjp`, as one traced program.

    Attributes:
        graph: the program. Its arguments are the operands, then one cotangent for each
            result in `inexact`; it returns the results, first those in `inexact`, then
            the gradients of the operands in `differentiated`.
        differentiated: positions of operands.
        inexact: positions of results that have cotangents.
        order: the positions of the results of the operation in those of the graph.
        forward: the operations of the forward pass.
        backward: those that depend on a cotangent.
        residuals: what the forward pass saves for the backward pass.
    """

    graph: Graph
    differentiated: tuple[int, ...]
    inexact: tuple[int, ...]
    order: tuple[int, ...]
    forward: tuple[JaxprEqn, ...]
    backward: tuple[JaxprEqn, ...]
    residuals: tuple[Var, ...]

    @property
    def operands(self) -> Sequence[Var]:
        """The graph's arguments for the operands."""
        return self.graph.args[: len(self.graph.args) - len(self.inexact)]

    @property
    def cotangents(self) -> Sequence[Var]:
        """The graph's arguments for the cotangents."""
        return self.graph.args[len(self.graph.args) - len(self.inexact) :]

    @property
    def results(self) -> Sequence[Any]:
        """The results of the operation, in its own order."""
        return [self.graph.outputs[i] for i in self.order]

    @property
    def gradients(self) -> Sequence[Any]:
        """The gradients of the differentiated operands."""
        return self.graph.outputs[len(self.order) :]


def split_rule(eqn: JaxprEqn, perturbed: Sequence[bool]) -> CustomRule:
    """Trace the rule of an operation and split it into forward and backward pass.

    Args:
        eqn: a `custom_jvp_call` or `custom_vjp_call`.
        perturbed: whether each operand depends on what is differentiated.
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
    reached = set(graph.args[len(eqn.invars) :])
    forward, backward = [], []
    for e in graph.eqns:
        if reached & set(variables(e.invars)):
            reached |= set(e.outvars)
            backward.append(e)
        else:
            forward.append(e)
    read = {v for e in backward for v in variables(e.invars)}
    read |= set(variables(graph.outputs[len(eqn.outvars) :]))
    saved = [v for v in dict.fromkeys(graph.defined_at) if v in read - reached]
    places = [*inexact, *exact]
    return CustomRule(
        graph=graph,
        differentiated=tuple(moved),
        inexact=tuple(inexact),
        order=tuple(map(places.index, range(len(places)))),
        forward=tuple(forward),
        backward=tuple(backward),
        residuals=tuple(v for v in saved if v not in graph.consts),
    )
