"""`distributed.plan`: the layout and micro-batches that fit each device's memory."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from frugax import measure
from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    Plan,
    check_budget,
    format_bytes,
    table,
)
from frugax.errors import InfeasibleBudgetError
from frugax.targets import Target
from frugax.trees import PyTree

from ..options import check_instance
from ..processes import Layout, LayoutKind
from ..step import TrainStep

# From the layout that communicates least to the one that needs least memory.
_KINDS: tuple[LayoutKind, ...] = ("data", "tensor", "fully-sharded")


@dataclasses.dataclass(frozen=True, slots=True)
class LayoutTrial:
    """One layout that was compiled and measured.

    Attributes:
        kind: kind of the layout.
        accum: number of micro-batches.
        nbytes: bytes needed on one device, as XLA reports them.
    """

    kind: LayoutKind
    accum: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan(Plan):
    """The layout of a step, and the bytes of each layout that was tried.

    Attributes:
        budget: memory of one device.
        shape: number of devices along `data` and `model`.
        tried: the trials in order; the last one is chosen.
    """

    budget: MemoryBudget
    shape: tuple[int, int]
    tried: tuple[LayoutTrial, ...]

    @property
    def kind(self) -> LayoutKind:
        """Kind of the chosen layout."""
        return self.tried[-1].kind

    @property
    def accum(self) -> int:
        """Chosen number of micro-batches."""
        return self.tried[-1].accum

    @property
    def predicted(self) -> int:
        """Bytes on one device."""
        return self.tried[-1].nbytes

    def layout(self, *, devices: Sequence[Any] | None = None) -> Layout:
        """Return the layout on the devices of this run.

        Args:
            devices: the devices; by default all devices of every process.

        Raises:
            ValueError: there are fewer devices than the plan was made for.
        """
        return Layout.over(self.shape, self.kind, devices=devices)

    def __str__(self) -> str:
        rows = [[t.kind, str(t.accum), format_bytes(t.nbytes), ""] for t in self.tried]
        rows[-1][-1] = "chosen"
        within = f"within {self.budget}"
        return table(["layout", "micro-batches", "on each device", within], rows)


def plan(
    make_step: Callable[[Layout, int], TrainStep],
    budget: MemoryBudget | MemoryShare,
    *,
    params: PyTree,
    batch: PyTree,
    shape: Sequence[int] | None = None,
    accums: Sequence[int] = (1,),
    devices: Sequence[Any] | None = None,
) -> LayoutPlan:
    """Find the first layout of a step that fits in the memory of each device.

    Layouts are tried in the order of their communication, micro-batches in the given
    order: as few as possible. On other devices, plan again and then restore: neither
    layout nor micro-batches change the result of training, up to rounding.

    Each trial is compiled and none is run, so the arrays may be shapes only.

    Args:
        make_step: makes the step, usually `lambda layout, accum: make_train_step(loss,
            optimizer, layout=layout, accum=accum)`.
        budget: memory of one device; a share of the program is one of the bytes that
            its first layout needs.
        params: the weights, or their shapes.
        batch: a whole batch, or its shapes.
        shape: number of devices along `data` and `model`; by default all along `data`.
        accums: numbers of micro-batches to try in turn until a layout fits.
        devices: the devices, which may be those of a `targets.Target` that is not here;
            by default all devices of every process.

    Raises:
        InfeasibleBudgetError: nothing fits; `needed` is the smallest that was measured.
        ValueError: there are too few devices, or the batch is not divisible.
        TypeError: `budget` is not a MemoryBudget.
    """
    if not isinstance(budget, MemoryShare):
        check_budget(budget, MemoryBudget)
    if not accums:
        raise ValueError("accums is empty: give at least (1,).")
    target = Target.of_devices(list(jax.devices() if devices is None else devices))
    limit = target.in_bytes(budget)
    tried: list[LayoutTrial] = []
    for accum in accums:
        for kind in _KINDS:
            if kind == "tensor" and (shape is None or [*shape, 1][1] == 1):
                continue  # the same as "data"
            layout = Layout.over(shape, kind, devices=devices)
            along_data, along_model = layout.mesh.devices.shape
            step = make_step(layout, accum)
            # Shapes alone: nothing is allocated that would not fit anyway.
            state = step.init_shapes(params)
            batch_shapes = jax.eval_shape(lambda b: b, batch)
            # On the devices of an absent target only its compiler can answer.
            with target.tracing():
                traced = step.trace(state, batch_shapes)
            program = measure.program(target.compile(traced))
            tried.append(LayoutTrial(kind, accum, program.bytes_of(limit.kind)))
            if isinstance(limit, MemoryShare):
                limit = limit.of(tried[0].nbytes)
            if tried[-1].nbytes <= limit.usable_bytes:
                return LayoutPlan(
                    budget=limit, shape=(along_data, along_model), tried=tuple(tried)
                )
    assert isinstance(limit, MemoryBudget)  # since the first trial
    raise InfeasibleBudgetError(
        "the step on one device",
        needed=min(t.nbytes for t in tried),
        limit=limit.usable_bytes,
        unit="bytes",
        hint="use more devices or micro-batches, a smaller batch, or a memory budget "
        "in the step.",
    )


def apply(
    make_step: Callable[[Layout, int], TrainStep],
    plan: LayoutPlan,
    *,
    devices: Sequence[Any] | None = None,
) -> TrainStep:
    """Make the step with the layout and micro-batches of a plan.

    Once it is compiled, `step.report()` holds the bytes that the plan predicted for
    each device against the measured ones.

    Args:
        make_step: the function that was planned.
        plan: the result of `plan`.
        devices: the devices; by default all devices of every process.

    Raises:
        TypeError: `plan` is not a LayoutPlan.
        ValueError: there are fewer devices than the plan was made for.
    """
    check_instance("plan", plan, LayoutPlan, example="distributed.plan(...)")
    step = make_step(plan.layout(devices=devices), plan.accum)
    step.expect_memory(plan.budget, predicted_bytes=plan.predicted)
    return step
