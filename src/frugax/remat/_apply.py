"""Turn a plan into a function: like `jax.value_and_grad`, within the budget."""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from frugax.budget import Receipt, Spend
from frugax.measure import program

from ._enclosing_program import EnclosingProgram, compile_program
from ._plan import RematPlan
from .rewrite import build_value_and_grad


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
        self._step = build_value_and_grad(
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

    def report(self, *args: Any, within: EnclosingProgram | None = None) -> Receipt:
        """Compile, measure, and hold the result against the plan.

        Args:
            args: arguments of the loss, or their shapes.
            within: the program that the plan was made for, if it was given to `plan`.
        """
        whole = within or EnclosingProgram(build=lambda grad: grad, args=args)
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
