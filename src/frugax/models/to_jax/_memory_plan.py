"""The memory plan of a compiled model: what was tried, what fits, what it costs."""

import dataclasses

from frugax.budget import (
    JsonPlan,
    MemoryBudget,
    amount,
    format_bytes,
    format_share,
    table,
)
from frugax.remat import RematPlan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One way to need less memory, and what it came to.

    Attributes:
        name: what was done, such as `"recompute"` or `"4 micro-batches"`.
        bytes: of the program with it, as XLA accounted for them.
        extra_flops: done more than without any; None where it was not counted.
        fits: whether that is within the budget.
    """

    name: str
    bytes: int
    extra_flops: int | None
    fits: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan(JsonPlan):
    """How the gradients of a compiled model are fitted into a memory budget.

    Attributes:
        budget: what it was made for.
        predicted: bytes of the program with this plan, of the budget's kind, as XLA
            accounted for them when the plan was made; <= the limit.
        unplanned_bytes: bytes of the same program without a plan.
        extra_flops: done more, counted on the traced program.
        unplanned_flops: without a plan.
        purpose: the function it is for: `evaluate` with gradients of some outputs, or
            `value_and_grad` of a loss.
        shapes: of the data it is for, by key.
        micro_batches: in how many pieces a batch goes through the model; 1: whole.
        batch_keys: the data that are cut for that, along their first axis.
        recompute: what the backward pass of one piece keeps and does again.
        levers: what was tried, in order.
        no_pieces: why batches could not be cut; empty if they could or need not be.
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
    recompute: RematPlan
    levers: tuple[Lever, ...]
    no_pieces: str = ""

    @property
    def extra_share(self) -> float:
        """`extra_flops` as a share of what the unplanned program does."""
        return self.extra_flops / max(self.unplanned_flops, 1)

    def __str__(self) -> str:
        rows = [
            [
                lever.name,
                amount(lever.bytes, "bytes"),
                "-"
                if lever.extra_flops is None
                else format_share(lever.extra_flops / max(self.unplanned_flops, 1)),
                "fits" if lever.fits else "too much",
            ]
            for lever in self.levers
        ]
        lines = [
            f"{self.purpose}, {self.budget}: {format_bytes(self.predicted)} with this "
            f"plan, {format_bytes(self.unplanned_bytes)} without; "
            f"{format_share(self.extra_share)} more flops",
            table(["tried, in order", "XLA's bytes", "more flops", ""], rows),
        ]
        if self.no_pieces:
            lines.append(f"batches are not cut in pieces: {self.no_pieces}")
        return "\n".join(lines)

    def explain(self) -> str:
        """What was tried, how batches go through, and what is kept and done again."""
        lines = [str(self), ""]
        lines += [f"data: {', '.join(f'{k} {s}' for k, s in self.shapes)}"]
        if self.micro_batches > 1:
            lines.append(
                f"each batch goes through in {self.micro_batches} pieces of "
                f"{', '.join(self.batch_keys)} along the first axis; gradients are "
                "summed, outputs put together."
            )
        if self.recompute.segments:
            piece = "of one piece " if self.micro_batches > 1 else ""
            lines += [f"the backward pass {piece}does again:", self.recompute.explain()]
        else:
            lines.append("nothing is computed twice in the backward pass.")
        return "\n".join(lines)
