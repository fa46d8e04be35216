"""`models.plan` and `apply`: gradients in a memory budget, or weights in a size budget.

A `MemoryBudget` limits the gradients of a model that is about to be compiled. A
`SizeBudget` limits the weights of a compiled model, which takes weights and data to
measure, so it cannot be planned from a description alone.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from frugax.budget import MemoryBudget, SizeBudget

from ._compile import build_program, check_memory_budget, resolve_target
from ._compiled_model import CompiledModel
from .graph import Layer

if TYPE_CHECKING:
    from frugax.remat import RematPlan

    from .to_jax import BudgetedJaxModel, CastParams, DtypePlan, JaxBackend


@overload
def plan(
    subject: Layer,
    budget: MemoryBudget,
    *,
    backend: "JaxBackend",
    shapes: Mapping[str, Any] | None = None,
    **options: Any,
) -> "RematPlan": ...


@overload
def plan(
    subject: CompiledModel,
    budget: SizeBudget,
    *,
    params: Mapping[str, Any],
    batches: Sequence[Mapping[str, Any]],
    dtypes: Sequence[Any] = ("float16", "bfloat16"),
) -> "DtypePlan": ...


def plan(subject: Any, budget: Any, **options: Any) -> Any:
    """Fit a model's gradients in a memory budget, or its weights in a size budget.

    With a `MemoryBudget` the plan says how gradients of all outputs are computed. With
    a `SizeBudget` it says which dtype each weight is kept in: every weight is rounded
    alone and the effect on the outputs is measured; then the weights that save most for
    the least error are rounded together, as long as the error stays within the bound.
    The error in the plan is measured on batches that were not used for choosing.

    Args:
        subject: a `Model` or layer for a `MemoryBudget`; a model that is compiled for
            JAX for a `SizeBudget`.
        budget: the bytes that the compiled program with gradients may need; or, for a
            `SizeBudget`, `rel_error`, the largest ||outputs - exact|| / ||exact|| of
            any output of any batch, or a size, for which the error is made small, or
            both.
        **options: for a `MemoryBudget` the arguments of `compile`, of which `backend`
            is required; `target` asks the compiler of other devices. For a
            `SizeBudget`: `params`, the weights by key; `batches`, at least two inputs
            of `compiled.evaluate`, the later half of which is held out; `dtypes`, the
            short dtypes that may be used.

    Returns:
        A `remat.RematPlan` or a `DtypePlan`, for `apply`.

    Raises:
        InfeasibleBudgetError: nothing that was tried fits.
        TypeError: the budget or the subject is of another type.
        ValueError: a length is unknown, the batches are too few, a dtype is not short,
            or the outputs are not finite.

    Example:
        >>> import frugax as ml
        >>> backend = ml.JaxBackend()
        >>> model = ml.models.MLP(input_size=8, hidden_sizes=[32], output_size=3)
        >>> compiled = ml.compile(model, backend)
        >>> params = compiled.randomize_params()
        >>> batches = [{"input": backend.randn(16, 8)} for _ in range(4)]
        >>> budget = ml.SizeBudget(rel_error=0.01)
        >>> plan = ml.models.plan(compiled, budget, params=params, batches=batches)
        >>> plan.bytes_before, plan.bytes_after, plan.error < 0.01
        (1548, 774, True)
    """
    if isinstance(budget, MemoryBudget):
        return _plan_memory(subject, budget, **options)
    if isinstance(budget, SizeBudget):
        return _plan_dtypes(subject, budget, **options)
    raise TypeError(
        'budget must be a MemoryBudget, such as MemoryBudget("64MiB"), or a SizeBudget '
        f"such as SizeBudget(rel_error=0.001), got {budget!r:.60}."
    )


@overload
def apply(
    subject: Layer,
    plan: "RematPlan",
    *,
    backend: "JaxBackend",
    shapes: Mapping[str, Any] | None = None,
    **options: Any,
) -> "BudgetedJaxModel": ...


@overload
def apply(
    subject: CompiledModel, plan: "DtypePlan", *, params: Mapping[str, Any]
) -> "CastParams": ...


def apply(subject: Any, plan: Any, **options: Any) -> Any:
    """Compile a model as a `RematPlan` says, or cast weights as a `DtypePlan` says.

    Nothing is searched again, so a plan that was kept as JSON costs one compilation.

    Args:
        subject: the model or the compiled model that was planned.
        plan: the plan that `frugax.models.plan` made for it.
        **options: for a `RematPlan` the arguments of `compile`, of which `backend` is
            required, with the shapes that were planned for. For a `DtypePlan` `params`,
            the weights by key.

    Returns:
        A compiled model that follows the plan, with a `plan` and a `report()`; or
        `CastParams`, with the cast weights as `params` and a `report(batches)`.

    Raises:
        TypeError: the plan or the subject is of another type.
        ValueError: the plan was made for other shapes, outputs or weights.

    Example:
        >>> import frugax as ml
        >>> backend = ml.JaxBackend()
        >>> model = ml.models.MLP(input_size=8, hidden_sizes=[32] * 4, output_size=3)
        >>> budget = ml.MemoryBudget("1MiB")
        >>> shapes = {"input": [64, 8]}
        >>> plan = ml.models.plan(model, budget, backend=backend, shapes=shapes)
        >>> compiled = ml.models.apply(model, plan, backend=backend, shapes=shapes)
        >>> str(compiled.report().verdict)
        'kept'
    """
    library = importlib.import_module("frugax.models.to_jax")
    if isinstance(plan, importlib.import_module("frugax.remat").RematPlan):
        return _apply_memory(subject, plan, **options)
    if isinstance(plan, library.DtypePlan):
        return library.CastParams.cast(_check_jax_model(subject), plan, **options)
    raise TypeError(
        f"plan must be a RematPlan or a DtypePlan, got {plan!r:.60}: make one with "
        "models.plan(...)."
    )


def _plan_memory(
    model: Any,
    budget: MemoryBudget,
    *,
    backend: Any,
    target: Any = None,
    **options: Any,
) -> "RematPlan":
    library = importlib.import_module("frugax.models.to_jax")
    target, budget = resolve_target(target, budget)
    program = build_program(model, backend, **options)
    check_memory_budget(budget, program.graph, backend, jit=backend.jit)
    return library.BudgetedJaxModel(program, budget=budget, target=target).plan


def _apply_memory(
    model: Any, plan: "RematPlan", *, backend: Any, **options: Any
) -> "BudgetedJaxModel":
    library = importlib.import_module("frugax.models.to_jax")
    program = build_program(model, backend, **options)
    check_memory_budget(plan.budget, program.graph, backend, jit=backend.jit)
    return library.BudgetedJaxModel(program, budget=plan.budget, plan=plan)


def _plan_dtypes(
    compiled: Any,
    budget: SizeBudget,
    *,
    params: Mapping[str, Any],
    batches: Sequence[Mapping[str, Any]],
    dtypes: Sequence[Any] = ("float16", "bfloat16"),
) -> "DtypePlan":
    library = importlib.import_module("frugax.models.to_jax")
    model = _check_jax_model(compiled)
    return library.plan_dtypes(model, params, batches, budget, dtypes=dtypes)


def _check_jax_model(compiled: Any) -> Any:
    """The same model, after checking that it was compiled for JAX."""
    if getattr(getattr(compiled, "backend", None), "name", None) != "jax":
        raise TypeError(
            "dtypes are planned for a model that is compiled for a JaxBackend, got "
            f"{compiled!r:.60}."
        )
    return compiled
