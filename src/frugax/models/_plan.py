"""`models.plan` and `apply`: a model's gradients in a memory budget."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from frugax.budget import MemoryBudget, MemoryShare

from ._compile import build_program, check_memory_budget, resolve_target
from .graph import Layer

if TYPE_CHECKING:
    from frugax.remat import RematPlan

    from .to_jax import BudgetedJaxModel, JaxBackend


def plan(
    model: Layer,
    budget: MemoryBudget | MemoryShare,
    *,
    backend: "JaxBackend",
    shapes: Mapping[str, Any] | None = None,
    target: Any = None,
    **options: Any,
) -> "RematPlan":
    """Plan a model's gradients within a memory budget.

    Args:
        model: a `Model` or a single layer.
        budget: the bytes that the compiled program with gradients may need, or a share
            of those without a plan or of a device.
        backend: of the compiled model.
        shapes: the shape of each input by key; every length must be stated.
        target: the devices to plan for, which need not be here, such as `"h100"`.
        **options: further arguments of `compile`.

    Returns:
        The plan of the gradients of all outputs, for `apply`.

    Raises:
        InfeasibleBudgetError: nothing that was tried fits.
        TypeError: the budget or the model is of another type.
        ValueError: a length is unknown.

    Example:
        >>> import frugax as fx
        >>> model = fx.models.MLP(input_size=8, hidden_sizes=[32] * 4, output_size=3)
        >>> budget = fx.MemoryBudget("1MiB")
        >>> how = {"backend": fx.JaxBackend(), "shapes": {"input": [64, 8]}}
        >>> plan = fx.models.plan(model, budget, **how)
        >>> plan.predicted <= budget.limit_bytes
        True
    """
    library = importlib.import_module("frugax.models.to_jax")
    target, budget = resolve_target(target, budget)
    program = build_program(model, backend, shapes=shapes, **options)
    check_memory_budget(budget, program.graph, backend, jit=backend.jit)
    return library.BudgetedJaxModel(program, budget=budget, target=target).plan


def apply(
    model: Layer,
    plan: "RematPlan",
    *,
    backend: "JaxBackend",
    shapes: Mapping[str, Any] | None = None,
    **options: Any,
) -> "BudgetedJaxModel":
    """Compile a model as a plan says.

    Nothing is searched again, so a plan that was kept as JSON costs one compilation.

    Args:
        model: the model that was planned.
        plan: the plan that `frugax.models.plan` made for it.
        backend: of the compiled model.
        shapes: those that were planned for.
        **options: further arguments of `compile`.

    Returns:
        A compiled model that follows the plan, with a `plan` and a `report()`.

    Raises:
        TypeError: the plan or the model is of another type.
        ValueError: the plan was made for other shapes or another model.

    Example:
        >>> import frugax as fx
        >>> model = fx.models.MLP(input_size=8, hidden_sizes=[32] * 4, output_size=3)
        >>> budget = fx.MemoryBudget("1MiB")
        >>> how = {"backend": fx.JaxBackend(), "shapes": {"input": [64, 8]}}
        >>> plan = fx.models.plan(model, budget, **how)
        >>> compiled = fx.models.apply(model, plan, **how)
        >>> str(compiled.report().verdict)
        'kept'
    """
    if not isinstance(plan, importlib.import_module("frugax.remat").RematPlan):
        raise TypeError(
            f"plan must be a RematPlan, got {plan!r:.60}: make one with "
            "models.plan(...)."
        )
    library = importlib.import_module("frugax.models.to_jax")
    program = build_program(model, backend, shapes=shapes, **options)
    check_memory_budget(plan.budget, program.graph, backend, jit=backend.jit)
    return library.BudgetedJaxModel(program, budget=plan.budget, plan=plan)
