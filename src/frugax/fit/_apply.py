"""`fit.apply`: carry out a plan as the gradient or training step that it is of."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from frugax import remat
from frugax.capture import jit
from frugax.targets import Target
from frugax.train import TrainStep

from ._plan import FitPlan
from ._workload import Workload, unwrap_jit


def apply(
    fn: Callable[..., Any] | Workload,
    plan: FitPlan,
    *,
    devices: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    """The planned gradient of a loss, or the step with its gradients planned.

    A step becomes `fx.jit(step, memory=...)` with the budget of the plan, which donates
    what was planned as donated. A `TrainStep`
    is made anew with the layout, micro-batches and budget that were chosen. Of all,
    `report()` holds the bytes against that budget.

    Args:
        fn: the loss, the step or the `TrainStep` that the plan was made for, or its
            workload.
        plan: the result of `plan` or `search`.
        devices: the devices of a `TrainStep`; by default all devices of every process.
        options: as for `remat.apply`; of a step, as for `jax.jit`.

    Raises:
        TypeError: `plan` is not a FitPlan.
    """
    if not isinstance(plan, FitPlan):
        raise TypeError(f"apply needs a FitPlan, got {type(plan).__name__}.")
    function = fn.fn if isinstance(fn, Workload) else fn
    chosen, row = plan.remat, plan.chosen or plan.rows[0]
    if isinstance(function, TrainStep):
        workload = fn if isinstance(fn, Workload) else Workload(fn=function, args=())
        variant = dataclasses.replace(
            workload,
            layout=row.layout or workload.layout,
            micro_batches=row.micro_batches,
        )
        here = Target.of_devices(list(jax.devices() if devices is None else devices))
        return variant.step_on(here, row.budget)
    if row.is_step:
        # Without the variables of flax nnx objects, which the plan has as an argument.
        donated = tuple(n for n in row.donate_argnums if n >= 0)
        options = {"donate_argnums": donated, **options}
        return jit(unwrap_jit(function), memory=row.budget, **options)
    assert chosen is not None  # of a loss
    return remat.apply(function, chosen, **options)
