"""Which budget does what in `compile`, and which are refused with the reason.

A `MemoryBudget` is for the backward pass (`to_jax/_within.py`); a `SizeBudget` for the
dtypes in which weights are kept (`plan_dtypes`), which needs weights and data, and so
cannot be had from a description alone.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frugax.budget import MemoryBudget, SizeBudget

from ._compiled_model import CompiledModel
from .graph import ModelGraph

if TYPE_CHECKING:
    from .to_jax import DtypePlan


def check_memory_budget(
    budget: object, graph: ModelGraph, backend: Any, *, jit: bool
) -> None:
    """See that a model can be compiled within this budget.

    Args:
        budget: what `compile` was given.
        graph: the program, with its shapes.
        backend: the backend it is for.
        jit: whether XLA compiles it.

    Raises:
        TypeError: the budget is no `MemoryBudget`.
        ValueError: the backend is not JAX or spreads over a mesh, XLA does not compile
            the model, or a length is free.
    """
    if isinstance(budget, SizeBudget):
        raise TypeError(
            "a SizeBudget is about weights, which compile does not have: use "
            "models.plan_dtypes(compiled, params, batches, budget) afterwards, or "
            "frugax.compress for files."
        )
    if not isinstance(budget, MemoryBudget):
        raise TypeError(
            'budget must be a MemoryBudget, such as MemoryBudget("64MiB"), got '
            f"{budget!r:.60}."
        )
    if backend.name != "jax":
        raise ValueError(
            f"budget= works on a JaxBackend; for {type(backend).__name__} nothing here "
            "plans memory. torch itself has torch.utils.checkpoint, and under "
            "torch.compile torch._functorch.config.activation_memory_budget, a share "
            "from 0 to 1 of what the backward pass keeps."
        )
    if not jit:
        raise ValueError(
            "budget= limits what XLA reserves for a compiled program, and jit=False "
            "runs op by op: leave out jit=False, here and in the backend."
        )
    if backend.mesh is not None:
        raise ValueError(
            "budget= plans for one device, and this backend spreads over a mesh of "
            f"{backend.mesh.size}: use a JaxBackend without device_mesh."
        )
    for key in sorted(set(graph.inputs) - set(graph.specs)):
        raise ValueError(
            f"budget= needs every shape, and that of {key!r} is not known: say it, as "
            f'in shapes={{"{key}": [32, 128]}}.'
        )
    free = {
        key: graph.specs[key].shape
        for key in graph.inputs
        if not all(isinstance(n, int) for n in graph.specs[key].shape)
    }
    if free:
        say = ", ".join(
            f'"{k}": [{", ".join(str(n) if isinstance(n, int) else "32" for n in s)}]'
            for k, s in free.items()
        )
        lengths = sorted(
            {str(n) for s in free.values() for n in s if not isinstance(n, int)}
        )
        raise ValueError(
            f"budget= needs every length, and {', '.join(lengths)} in "
            f"{', '.join(f'{k!r} {s}' for k, s in free.items())} is free: say it, as "
            f"in shapes={{{say}}}."
        )


def plan_dtypes(
    compiled: CompiledModel,
    params: Mapping[str, Any],
    batches: Sequence[Mapping[str, Any]],
    budget: SizeBudget,
    *,
    dtypes: Sequence[Any] = ("float16", "bfloat16"),
) -> "DtypePlan":
    """Choose for each weight the dtype it is kept in, within an error of the outputs.

    Every weight is rounded alone and what that does to the outputs is measured; then
    those that save most for the least error are rounded together, for as long as the
    error stays within the bound. What comes of it is measured on batches that were not
    used for choosing.

    Args:
        compiled: a model compiled for JAX.
        params: its weights by key.
        batches: data as for `compiled.evaluate`, at least two; the later half is held
            out.
        budget: `rel_error`, the most that ||outputs - exact|| / ||exact|| may be for
            any output of any batch; or a size, then that error is made small; or both.
        dtypes: the short dtypes that may be used.

    Returns:
        A plan; `plan.apply(params)` gives the weights in their dtypes.

    Raises:
        InfeasibleBudgetError: no choice is within the error and the size.
        TypeError: the budget is no `SizeBudget`, or the model is not for JAX.
        ValueError: there are too few batches, a dtype is not short, or the outputs are
            not finite.

    Example:
        >>> import frugax as ml
        >>> backend = ml.JaxBackend()
        >>> model = ml.models.MLP(input_size=8, hidden_sizes=[32], output_size=3)
        >>> compiled = ml.compile(model, backend)
        >>> params = compiled.randomize_params()
        >>> batches = [{"input": backend.randn(16, 8)} for _ in range(4)]
        >>> budget = ml.SizeBudget(rel_error=0.01)
        >>> plan = ml.models.plan_dtypes(compiled, params, batches, budget)
        >>> plan.bytes_before, plan.bytes_after, plan.error < 0.01
        (1548, 774, True)
    """
    if getattr(getattr(compiled, "backend", None), "name", None) != "jax":
        raise TypeError(
            "plan_dtypes takes a model compiled for a JaxBackend, got "
            f"{compiled!r:.60}."
        )
    library = importlib.import_module("frugax.models.to_jax")
    return library.plan_dtypes(compiled, params, batches, budget, dtypes=dtypes)
