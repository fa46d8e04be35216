"""`remat.apply`: turn a plan into a function called like `jax.value_and_grad(loss)`."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax.core import Tracer

from frugax.budget import Receipt, Spend
from frugax.errors import RematUndoneError
from frugax.jaxprs import LossOfArrays, take_arrays
from frugax.measure import program
from frugax.targets import find_platform

from ._enclosing_program import EnclosingProgram, compile_program
from ._gradient_difference import GradientDifference
from ._plan import RematPlan
from ._shardings import check_shardings
from .rewrite import build_value_and_grad


class PlannedGrad:
    """A loss's value and gradients within a memory budget; made by `apply`.

    Call it as `jax.value_and_grad(loss, argnums, has_aux)`; in a gradient for a module,
    None stands for leaves that are not differentiated. Outside of a `jit` it is
    compiled once for each set of shapes; inside a `jit` it becomes part of that
    program.

    Attributes:
        plan: the plan it follows.
    """

    def __init__(
        self, loss: Callable[..., Any], plan: RematPlan, *, anywhere: bool = False
    ) -> None:
        self.plan = plan
        self._anywhere = anywhere
        self._loss = loss
        self._of_modules: dict[Hashable, PlannedGrad] = {}
        self._step = build_value_and_grad(
            loss, plan, plan.fingerprint, argnums=plan.argnums, has_aux=plan.has_aux
        )
        self._jitted = jax.jit(self._step)

    def __call__(self, *args: Any) -> tuple[Any, Any]:
        """The loss, with its auxiliary output if it has one, and its gradients.

        Raises:
            ValueError: the loss, the shapes or the kind of device differ from those of
                the plan, or an array holds more on each device.
        """
        step, taken = self._take(args)
        return taken.finish(step._call(*taken.args))

    def _call(self, *args: Any) -> tuple[Any, Any]:
        """The same with arrays that are taken out of modules."""
        self._check_platform(args)
        # Inside a transformation or a `jit` of the caller the plain function is traced
        # into the caller's program, where its gates hold as well.
        leaves = jax.tree.leaves(args)
        if any(isinstance(x, Tracer) for x in leaves):
            return self._step(*args)
        check_shardings(self.plan.shard_shapes, args)
        return self._jitted(*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Lower the program for these arguments or shapes, ready to be compiled."""
        step, taken = self._take(args)
        step._check_platform(taken.args)
        return step._jitted.lower(*taken.args)

    def trace(self, *args: Any) -> jax.stages.Traced:
        """Trace the program for these arguments or shapes, as `jax.jit` does."""
        step, taken = self._take(args)
        return step._jitted.trace(*taken.args)

    def _take(self, args: tuple[Any, ...]) -> tuple["PlannedGrad", LossOfArrays]:
        """The same gradient as a function of arrays, and these."""
        plan = self.plan
        taken = take_arrays(self._loss, args, plan.argnums, has_aux=plan.has_aux)
        if taken.key is None:
            return self, taken
        if taken.key not in self._of_modules:
            plan = dataclasses.replace(plan, has_aux=taken.has_aux)
            step = PlannedGrad(taken.loss, plan, anywhere=self._anywhere)
            self._of_modules[taken.key] = step
        return self._of_modules[taken.key], taken

    def _check_platform(self, args: tuple[Any, ...]) -> None:
        plan = self.plan
        if self._anywhere or not plan.platform:
            return
        if (found := find_platform(args)) != plan.platform:
            raise ValueError(
                f"this plan was made for {plan.target} ({plan.platform}), but the "
                f"arguments live on {found}, where its recomputation may be undone: "
                "plan again there, or measure it there: apply(loss, plan, "
                "anywhere=True).report(*args)."
            )

    def compare_with_plain(self, *args: Any) -> GradientDifference:
        """Run the gradient with and without the plan, and compare the numbers.

        Args:
            args: arguments of the loss; the program without a plan must fit, too.

        Raises:
            ValueError: as a call does.
        """
        step, taken = self._take(args)
        how = {"argnums": taken.argnums, "has_aux": taken.has_aux}
        plain = jax.jit(jax.value_and_grad(taken.loss, **how))

        def name_arguments(found: tuple[Any, Any]) -> tuple[Any, dict[int, Any]]:
            value, grads = found
            if isinstance(taken.argnums, int):
                return value, {taken.argnums: grads}
            return value, dict(zip(taken.argnums, grads, strict=True))

        both = [name_arguments(f(*taken.args)) for f in (step._call, plain)]
        if taken.has_aux:
            both = [(value[0], grads) for value, grads in both]
        return GradientDifference.of(*both)

    def report(self, *args: Any, within: EnclosingProgram | None = None) -> Receipt:
        """Compile and measure the program, and compare it with the plan.

        Args:
            args: arguments of the loss, or their shapes.
            within: the enclosing program that the plan was made for, if there was one.

        Raises:
            RematUndoneError: nothing is in the host's memory, and the plan says so.
        """
        step, taken = self._take(args)
        # The plan's bytes are those of the enclosing program: the gradient alone needs
        # fewer.
        whole = EnclosingProgram.around(within, taken.args)
        whole = whole.on_target_of(self.plan.target, self.plan.platform)
        # Only a program of the caller's own calls the gradient with modules.
        grad = step._call if within is None else self
        measured = program(compile_program(whole, grad).executable)
        if self.plan.host_bytes and not measured.host_bytes:
            raise RematUndoneError(
                f"the compiler of {whole.target} kept on the device what the plan "
                "keeps in the host's memory; plan with offload=False."
            )
        budget = self.plan.budget
        spend = Spend(
            name=f"{budget.kind} memory",
            unit="bytes",
            limit=budget.limit_bytes,
            predicted=self.plan.predicted,
            measured=measured.bytes_of(budget.kind),
            source=f"memory_analysis() of the program compiled for {whole.target}",
        )
        return Receipt((spend,))


def apply(
    loss: Callable[..., Any], plan: RematPlan, *, anywhere: bool = False
) -> PlannedGrad:
    """Carry out a plan.

    Args:
        loss: the function that the plan was made for, or one with the same trace.
        plan: the result of `remat.plan` or `RematPlan.from_json`.
        anywhere: whether it may run on another kind of device than it was made for;
            only `report` tells whether it keeps to its budget there.

    Raises:
        TypeError: `plan` is not a RematPlan.
    """
    if not isinstance(plan, RematPlan):
        raise TypeError(
            "apply needs a loss and the RematPlan that remat.plan made for it, got "
            f"{type(plan).__name__}."
        )
    return PlannedGrad(loss, plan, anywhere=anywhere)
