"""Turn a plan into a function that is called as `jax.value_and_grad(loss)` is."""

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

    Call it as `jax.value_and_grad(loss, argnums, has_aux)`. Outside of a `jit` it is
    compiled once for each set of shapes; inside a `jit` it becomes part of that
    program.

    Attributes:
        plan: the plan it follows.
    """

    def __init__(self, loss: Callable[..., Any], plan: RematPlan) -> None:
        self.plan = plan
        self._step = build_value_and_grad(
            loss,
            plan.segments,
            plan.body_plans,
            plan.fingerprint,
            argnums=plan.argnums,
            has_aux=plan.has_aux,
        )
        self._jitted = jax.jit(self._step)

    def __call__(self, *args: Any) -> tuple[Any, Any]:
        """The loss, with its auxiliary output if it has one, and its gradients.

        Raises:
            ValueError: the loss or the shapes differ from those of the plan.
        """
        # Inside a transformation or a `jit` of the caller the plain function is traced
        # into the caller's program, where its gates hold as well.
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
            return self._step(*args)
        return self._jitted(*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Lower the program for these arguments or shapes, ready to be compiled."""
        return self._jitted.lower(*args)

    def report(self, *args: Any, within: EnclosingProgram | None = None) -> Receipt:
        """Compile and measure the program, and compare it with the plan.

        Args:
            args: arguments of the loss, or their shapes.
            within: the enclosing program that the plan was made for, if there was one.
        """
        # The plan's bytes are those of the enclosing program: the gradient alone needs
        # fewer.
        whole = EnclosingProgram.around(within, args)
        measured = program(compile_program(whole, self).executable)
        budget = self.plan.budget
        spend = Spend(
            name=f"{budget.kind} memory",
            unit="bytes",
            limit=budget.limit_bytes,
            predicted=self.plan.predicted,
            measured=measured.bytes_of(budget.kind),
            source="memory_analysis() of the compiled program",
        )
        return Receipt((spend,))


def apply(loss: Callable[..., Any], plan: RematPlan) -> PlannedGrad:
    """Carry out a plan.

    Args:
        loss: the function that the plan was made for, or one with the same trace.
        plan: the result of `remat.plan` or `RematPlan.from_json`.

    Raises:
        TypeError: `plan` is not a RematPlan.
    """
    if not isinstance(plan, RematPlan):
        raise TypeError(
            "apply needs a loss and the RematPlan that remat.plan made for it, got "
            f"{type(plan).__name__}."
        )
    return PlannedGrad(loss, plan)
