"""Choose a layout that fits in the memory of each device."""

import dataclasses
import json
from collections.abc import Callable, Sequence

import jax

from frugax import measure
from frugax.budget import (
    MemoryBudget,
    check_budget,
    format_bytes,
    from_plain,
    table,
    to_plain,
)
from frugax.errors import InfeasibleBudgetError
from frugax.train._layout import Layout, LayoutKind
from frugax.train._step import TrainStep
from frugax.typing import PyTree

# From the one that sends least to the one that holds least.
_KINDS: tuple[LayoutKind, ...] = ("data", "tensor", "fully-sharded")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan:
    """Which layout a step runs in, and what each one that was tried needs.

    Attributes:
        budget: the memory of one device.
        shape: devices along `data` and `model`.
        kind: the layout that was chosen.
        tried: kind and bytes on one device, as XLA measures them, in order.
    """

    budget: MemoryBudget
    shape: tuple[int, int]
    kind: LayoutKind
    tried: tuple[tuple[LayoutKind, int], ...]

    @property
    def predicted(self) -> int:
        """Bytes on one device."""
        return dict(self.tried)[self.kind]

    def layout(self) -> Layout:
        """The layout on the devices that are here.

        Raises:
            ValueError: there are fewer than the plan was made for.
        """
        return Layout.over(self.shape, self.kind)

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: str) -> "LayoutPlan":
        """The plan that `to_json` wrote.

        Raises:
            ValueError: the text is not such a plan.
        """
        return from_plain(cls, json.loads(text))

    def __str__(self) -> str:
        rows = [
            [kind, format_bytes(n), "chosen" if kind == self.kind else ""]
            for kind, n in self.tried
        ]
        return table(["layout", "on each device", f"within {self.budget}"], rows)


def plan(
    make_step: Callable[[Layout], TrainStep],
    params: PyTree,
    batch: PyTree,
    budget: MemoryBudget,
    *,
    shape: Sequence[int] | None = None,
) -> LayoutPlan:
    """Find the layout that sends least among those that fit.

    Each is compiled, none is run; the arrays may be shapes only.

    Args:
        make_step: makes the step for a layout, mostly
            `lambda layout: make_train_step(loss, optimizer, layout=layout)`.
        params: the weights, or their shapes.
        batch: a batch, or its shapes.
        budget: what one device has.
        shape: devices along `data` and `model`; all along `data` if not given.

    Raises:
        InfeasibleBudgetError: no layout fits; it says what the smallest needs.
        ValueError: there are not so many devices, or the batch cannot be split.
        TypeError: `budget` is no memory budget.
    """
    check_budget(budget, MemoryBudget)
    tried: list[tuple[LayoutKind, int]] = []
    for kind in _KINDS:
        layout = Layout.over(shape, kind)
        if kind == "tensor" and layout.mesh.shape["model"] == 1:
            continue
        step = make_step(layout)
        state, given = step.init_shapes(params), jax.eval_shape(lambda b: b, batch)
        program = measure.program(step.lower(state, given).compile())
        tried.append((kind, program.bytes_of(budget.kind)))
        if tried[-1][1] <= budget.usable_bytes:
            size = layout.mesh.devices.shape
            return LayoutPlan(
                budget=budget, shape=(size[0], size[1]), kind=kind, tried=tuple(tried)
            )
    raise InfeasibleBudgetError(
        "the step on one device",
        needed=min(n for _, n in tried),
        limit=budget.usable_bytes,
        unit="bytes",
        hint="use more devices, a smaller batch, or a memory budget in the step.",
    )
