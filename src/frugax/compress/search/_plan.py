"""`CompressPlan`: codec, bytes and error of each tensor before the file is written."""

import dataclasses

from frugax.budget import Plan, SizeBudget

from .._tensor_table import FileTable, TensorReport, show_error, tensor_table
from ..codecs import ChannelScaling, Step
from ._calibration import Calibration
from ._draft import Draft

# Up to this share of the size a plan says that some of it is unused.
_UNUSED = 0.97


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan(TensorReport):
    """How one tensor will be stored; its errors are rounded up to 4 digits.

    Attributes:
        step: the distance of two quantised values; None if exact.
        rms: root mean square of the weights that the step is for; 0 if exact.
    """

    step: Step | None
    rms: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompressPlan(FileTable, Plan):
    """How a tree of weights will be stored within a `SizeBudget`.

    Only the gap is an estimate: planning codes every tensor and counts.

    Attributes:
        tensors: one entry for each leaf, in the tree's order.
        calibration: the digest of the `Calibration` that set steps of rows or columns;
            `apply` needs it again. None without one.
        output_error: relative error of the outputs on the batches that were calibrated
            on; None where the budget does not limit it.
    """

    tensors: tuple[TensorPlan, ...]
    calibration: str | None = None
    output_error: float | None = None

    @property
    def predicted(self) -> float:
        """File bytes if the budget limits them, otherwise the error it limits."""
        budget = self.budget
        sizes = (budget.bytes, budget.ratio, budget.bits_per_weight)
        if any(size is not None for size in sizes):
            return self.file_bytes
        if budget.output_error is not None and self.output_error is not None:
            return self.output_error
        if budget.rel_error is None:
            return self.max_abs
        return self.rel_error

    def __str__(self) -> str:
        columns = {"relative error": lambda t: show_error(t.rel_error, 2)}
        unused = ""
        if (share := self._used_share()) <= _UNUSED:
            unused = (
                f"\n{100 * share:.0f}% of the size is used: no finer file was found "
                "within it, and the exact one is longer"
            )
        return (
            f"{tensor_table(self.tensors, columns)}\n{self._show_file()} "
            f"(budget: {self.budget}){unused}{self._show_gap()}"
        )


def make_plan(
    draft: Draft, budget: SizeBudget, calibration: Calibration | None = None
) -> CompressPlan:
    """Return the plan that a draft carries out."""
    output_error = None
    if budget.output_error is not None and calibration is not None:
        output_error = calibration.predict(draft.arrays())
    rms = {source.name: source.rms for source in draft.sources}
    tensors = tuple(
        TensorPlan.of(
            t,
            step=t.step,
            rms=rms[t.tied or t.name] if t.step is not None else 0.0,
        )
        for t in draft.tensors
    )
    return CompressPlan(
        budget=budget,
        tensors=tensors,
        original_bytes=sum(s.array.nbytes for s in draft.sources),
        file_bytes=draft.length,
        rel_error=draft.rel_error,
        max_abs=draft.max_abs,
        allocation_gap=draft.gap,
        calibration=next(
            (
                source.scaling.calibration
                for source in draft.sources
                if isinstance(source.scaling, ChannelScaling)
                and source.scaling.calibration
            ),
            None,
        ),
        output_error=output_error,
    )
