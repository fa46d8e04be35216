"""`MemoryPlan`: how a model's gradients fit their memory budget, and all attempts."""

import dataclasses

from frugax.budget import (
    MemoryBudget,
    Plan,
    amount,
    format_bytes,
    format_share,
    table,
)
from frugax.remat import RematPlan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One way to save memory, with its measured effect.

    Attributes:
        name: of the way, such as `"recompute"` or `"4 micro-batches"`.
        bytes: of the program, as XLA counts them.
        extra_flops: compared with the plain program; None if not counted.
        fits: whether the program is within the budget.
    """

    name: str
    bytes: int
    extra_flops: int | None
    fits: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan(Plan):
    """A way to fit the gradients of a compiled model into a memory budget.

    Attributes:
        budget: of the plan.
        predicted: bytes of the program with this plan, of the budget's kind, as XLA
            counted them while planning; <= the limit.
        unplanned_bytes: bytes of the same program without a plan.
        extra_flops: compared with the plain program, counted in the traced program.
        unplanned_flops: of the plain program.
        purpose: the planned function: `evaluate` with gradients of some outputs, or
            `value_and_grad` of a loss.
        shapes: of the data, by key.
        micro_batches: number of parts of a batch; 1 for whole batches.
        batch_keys: the data that are split along their first axis.
        recompute: the recomputation of one micro-batch; None if the plain program
            fits, so that nothing was searched.
        levers: all attempts, in order.
        no_pieces: why batches cannot be split; empty if they can or need not be.
        target: the devices whose compiler counted the bytes; "" in older plans.
    """

    budget: MemoryBudget
    predicted: int
    unplanned_bytes: int
    extra_flops: int
    unplanned_flops: int
    purpose: str
    shapes: tuple[tuple[str, str], ...]
    micro_batches: int
    batch_keys: tuple[str, ...]
    recompute: RematPlan | None
    levers: tuple[Lever, ...]
    no_pieces: str = ""
    target: str = ""

    @property
    def extra_share(self) -> float:
        """`extra_flops` as a share of the flops of the unplanned program."""
        return self.extra_flops / max(self.unplanned_flops, 1)

    def __str__(self) -> str:
        rows: list[list[str]] = []
        for lever in self.levers:
            flops, verdict = "-", "too much"
            if lever.extra_flops is not None:
                flops = format_share(lever.extra_flops / max(self.unplanned_flops, 1))
            if lever.fits:
                verdict = "fits"
            rows.append([lever.name, amount(lever.bytes, "bytes"), flops, verdict])
        lines = [
            f"{self.purpose}, {self.budget}: {format_bytes(self.predicted)} with this "
            f"plan, {format_bytes(self.unplanned_bytes)} without; "
            f"{format_share(self.extra_share)} more flops",
            *([f"counted by the compiler for {self.target}"] * bool(self.target)),
            table(["tried, in order", "XLA's bytes", "more flops", ""], rows),
        ]
        if self.no_pieces:
            lines.append(f"batches are not split: {self.no_pieces}")
        return "\n".join(lines)

    def explain(self) -> str:
        """Explain the attempts, the micro-batches and the recomputation."""
        lines = [str(self), ""]
        lines += [f"data: {', '.join(f'{k} {s}' for k, s in self.shapes)}"]
        if self.micro_batches > 1:
            lines.append(
                f"each batch runs in {self.micro_batches} micro-batches, split along "
                f"the first axis of {', '.join(self.batch_keys)}; gradients are "
                "summed, outputs are joined."
            )
        if self.recompute is not None and self.recompute.segments:
            part = "the backward pass"
            if self.micro_batches > 1:
                part = "the backward pass of one micro-batch"
            lines += [f"{part} recomputes:", self.recompute.explain()]
        else:
            lines.append("the backward pass recomputes nothing.")
        return "\n".join(lines)
