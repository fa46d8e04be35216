"""Turn a plan into a function: like `jax.value_and_grad`, within the budget."""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from frugax.budget import Receipt, Spend
from frugax.measure import program

from ._body import read_body
from ._check import check_ranges
from ._execute import value_and_gradients
from ._plan import Inside, RematPlan, Segment
from ._program import Program, compile_program
from ._rewrite import with_insides


def planned_value_and_grad(
    loss: Callable[..., Any],
    segments: tuple[Segment, ...],
    insides: tuple[Inside, ...],
    fingerprint: str,
    *,
    argnums: int | tuple[int, ...],
    has_aux: bool,
) -> Callable[..., Any]:
    """`jax.value_and_grad(loss, argnums, has_aux)`, run by these segments.

    Raises:
        ValueError: when called, if the loss or the shapes are not those of the plan.
    """

    def step(*args: Any) -> tuple[Any, Any]:
        body = read_body(loss, args, argnums, has_aux=has_aux)
        if body.graph.fingerprint != fingerprint:
            raise ValueError(
                "this plan was made for another loss or other shapes: it is for "
                f"{fingerprint:.8}, this is {body.graph.fingerprint:.8}. Plan again "
                "with remat.plan, with these shapes in example_args and in `within`."
            )
        if not segments:
            return jax.value_and_grad(loss, argnums, has_aux=has_aux)(*args)
        body = with_insides(body, insides)
        check_ranges(segments, 0, len(body.eqns))
        outputs, flat = value_and_gradients(body, segments, jax.tree.leaves(args))
        value = jax.tree.unflatten(body.graph.out_tree, outputs)
        rest = iter(flat)
        gradient = lambda n: jax.tree.map(lambda _: next(rest), args[n])
        if isinstance(argnums, int):
            return value, gradient(argnums)
        return value, tuple(gradient(n) for n in argnums)

    return step


class PlannedGrad:
    """A loss's value and gradients within a memory budget; made by `apply`.

    Call it as you would `jax.value_and_grad(loss, argnums, has_aux)`. By itself it
    is compiled once for each set of shapes; under a `jit` of yours it becomes a part
    of that.

    Attributes:
        plan: the plan it follows.
    """

    def __init__(self, loss: Callable[..., Any], plan: RematPlan) -> None:
        self.plan = plan
        self._loss = loss
        self._step = planned_value_and_grad(
            loss,
            plan.segments,
            plan.insides,
            plan.fingerprint,
            argnums=plan.argnums,
            has_aux=plan.has_aux,
        )
        self._jitted = jax.jit(self._step)

    def __call__(self, *args: Any) -> tuple[Any, Any]:
        """The loss (and what else it returns), and its gradients.

        Raises:
            ValueError: the loss or the shapes are not those of the plan.
        """
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
            return self._step(*args)
        return self._jitted(*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """The program for these arguments, or shapes, ready to be compiled."""
        return self._jitted.lower(*args)

    def report(self, *args: Any, within: Program | None = None) -> Receipt:
        """Compile, measure, and hold the result against the plan.

        Args:
            args: arguments of the loss, or their shapes.
            within: the program that the plan was made for, if it was given to `plan`.
        """
        whole = within or Program(build=lambda grad: grad, args=args)
        compiled = compile_program(whole, self).compiled
        budget = self.plan.budget
        spend = Spend(
            name=f"{budget.kind} memory",
            unit="bytes",
            limit=budget.limit_bytes,
            predicted=self.plan.predicted,
            measured=program(compiled).bytes_of(budget.kind),
            source="memory_analysis() of the compiled program",
        )
        return Receipt((spend,))


def apply(loss: Callable[..., Any], plan: RematPlan) -> PlannedGrad:
    """Carry out a plan.

    Args:
        loss: the function that the plan was made for, or one with the same trace.
        plan: what `plan` gave, or `RematPlan.from_json`.

    Raises:
        TypeError: it is no plan.
    """
    if not isinstance(plan, RematPlan):
        raise TypeError(
            "apply needs a loss and the RematPlan that remat.plan made for it, got "
            f"{type(plan).__name__}."
        )
    return PlannedGrad(loss, plan)
