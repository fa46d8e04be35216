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
    what was planned as donated. That of a workload puts its arguments where the plan
    has them; those of a function stay where the caller has put them. A `TrainStep` is
    made anew with the layout, micro-batches and budget that were chosen. Of all,
    `report()` holds the bytes against that budget.

    Args:
        fn: the loss, the step or the `TrainStep` that the plan was made for, or its
            workload.
        plan: the result of `plan` or `search`.
        devices: the devices of a `TrainStep` or the workload of a step; by default all
            devices of every process.
        options: as for `remat.apply`; of a step, as for `jax.jit`.

    Raises:
        TypeError: `plan` is not a FitPlan.
        ConfigError: the plan has no answer; the error says why.
    """
    if not isinstance(plan, FitPlan):
        raise TypeError(f"apply needs a FitPlan, got {type(plan).__name__}.")
    function = fn.fn if isinstance(fn, Workload) else fn
    here = Target.of_devices(list(jax.devices() if devices is None else devices))
    chosen, row = plan.remat, plan.chosen or plan.rows[0]
    if row.problem:
        raise row.to_error(f"nothing was planned for {row.target}")
    if isinstance(function, TrainStep):
        workload = fn if isinstance(fn, Workload) else Workload(fn=function, args=())
        variant = dataclasses.replace(
            workload,
            layout=row.layout or workload.layout,
            micro_batches=row.micro_batches,
        )
        return variant.step_on(here, row.budget)
    if row.is_step:
        # Without the variables of flax nnx objects, which the plan has as an argument.
        donated = tuple(n for n in row.donate_argnums if n >= 0)
        options = {"donate_argnums": donated, **options}
        step = jit(unwrap_jit(function), memory=row.budget, **options)
        # A plan for one device has no layout.
        if not isinstance(fn, Workload) or not (row.layout or fn.axes):
            return step
        variant = dataclasses.replace(fn, layout=row.layout or fn.layout)
        return _PlacedStep(step, variant.trace(here).call.leaves)
    assert chosen is not None  # of a loss
    return remat.apply(function, chosen, **options)


class _PlacedStep:
    """A step that puts its arguments on their devices; else what `fx.jit` returns.

    Args:
        step: the step.
        shapes: its flat arguments, with the shardings that are stated.
    """

    def __init__(self, step: Any, shapes: Sequence[Any]) -> None:
        self._step = step
        self._places = [getattr(x, "sharding", None) for x in shapes]

    def __call__(self, *args: Any) -> Any:
        """Call the step.

        Raises:
            ValueError: the arguments hold more or fewer arrays than were planned.
        """
        leaves, tree = jax.tree.flatten(args)
        if len(leaves) != len(self._places):
            raise ValueError(
                f"the step was planned for {len(self._places)} arrays, got "
                f"{len(leaves)}: call it with arguments like those of its workload."
            )
        placed = [
            leaf if place is None else jax.device_put(leaf, place)
            for leaf, place in zip(leaves, self._places, strict=True)
        ]
        return self._step(*tree.unflatten(placed))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
