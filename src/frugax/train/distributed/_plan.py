"""Choose layout and micro-batches that fit in the memory of each device."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from frugax import measure
from frugax.budget import (
    JsonPlan,
    MemoryBudget,
    check_budget,
    format_bytes,
    table,
)
from frugax.errors import InfeasibleBudgetError
from frugax.train._layout import Layout, LayoutKind
from frugax.train._step import TrainStep
from frugax.trees import PyTree

# From the one that sends least to the one that holds least.
_KINDS: tuple[LayoutKind, ...] = ("data", "tensor", "fully-sharded")


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """One way to spread a step that was compiled to be measured.

    Attributes:
        kind: its layout.
        accum: its micro-batches.
        nbytes: what it needs on one device, as XLA measures it.
    """

    kind: LayoutKind
    accum: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan(JsonPlan):
    """How a step is spread, and what each way that was tried needs.

    Attributes:
        budget: the memory of one device.
        shape: devices along `data` and `model`.
        tried: in order; the last one is chosen.
    """

    budget: MemoryBudget
    shape: tuple[int, int]
    tried: tuple[Tried, ...]

    @property
    def kind(self) -> LayoutKind:
        """The layout that was chosen."""
        return self.tried[-1].kind

    @property
    def accum(self) -> int:
        """The micro-batches that were chosen."""
        return self.tried[-1].accum

    @property
    def predicted(self) -> int:
        """Bytes on one device."""
        return self.tried[-1].nbytes

    def layout(self, *, devices: Sequence[Any] | None = None) -> Layout:
        """The layout on the devices that are here.

        Args:
            devices: which of them; all of every process if not given.

        Raises:
            ValueError: there are fewer than the plan was made for.
        """
        return Layout.over(self.shape, self.kind, devices=devices)

    def __str__(self) -> str:
        rows = [
            [
                t.kind,
                str(t.accum),
                format_bytes(t.nbytes),
                "chosen" if t is self.tried[-1] else "",
            ]
            for t in self.tried
        ]
        within = f"within {self.budget}"
        return table(["layout", "micro-batches", "on each device", within], rows)


def plan(
    make_step: Callable[[Layout, int], TrainStep],
    params: PyTree,
    batch: PyTree,
    budget: MemoryBudget,
    *,
    shape: Sequence[int] | None = None,
    accums: Sequence[int] = (1,),
    devices: Sequence[Any] | None = None,
) -> LayoutPlan:
    """Find the first way to spread a step that fits in the memory of each device.

    Layouts come in the order of what they send, micro-batches in the order given: as
    few as possible. On other devices than before, plan anew and then restore: neither
    changes what is learned, up to rounding.

    Each is compiled, none is run; the arrays may be shapes only.

    Args:
        make_step: makes the step, mostly `lambda layout, accum: make_train_step(loss,
            optimizer, layout=layout, accum=accum)`.
        params: the weights, or their shapes.
        batch: a whole batch, or its shapes.
        budget: what one device has.
        shape: devices along `data` and `model`; all along `data` if not given.
        accums: numbers of micro-batches to try where no layout fits with fewer.
        devices: which of them; all of every process if not given.

    Raises:
        InfeasibleBudgetError: nothing fits; it says what the smallest needs.
        ValueError: there are not so many devices, or the batch cannot be split.
        TypeError: `budget` is no memory budget.
    """
    check_budget(budget, MemoryBudget)
    if not accums:
        raise ValueError("accums is empty: give at least (1,).")
    tried: list[Tried] = []
    for accum in accums:
        for kind in _KINDS:
            layout = Layout.over(shape, kind, devices=devices)
            if kind == "tensor" and layout.mesh.shape["model"] == 1:
                continue
            step = make_step(layout, accum)
            state, given = step.init_shapes(params), jax.eval_shape(lambda b: b, batch)
            program = measure.program(step.lower(state, given).compile())
            tried.append(Tried(kind, accum, program.bytes_of(budget.kind)))
            if tried[-1].nbytes <= budget.usable_bytes:
                along_data, along_model = layout.mesh.devices.shape
                return LayoutPlan(
                    budget=budget, shape=(along_data, along_model), tried=tuple(tried)
                )
    raise InfeasibleBudgetError(
        "the step on one device",
        needed=min(t.nbytes for t in tried),
        limit=budget.usable_bytes,
        unit="bytes",
        hint="use more devices or micro-batches, a smaller batch, or a memory budget "
        "in the step.",
    )
