"""The plan: which parts of a loss are kept and which are done again."""

import dataclasses
from typing import Literal

from frugax.budget import (
    JsonPlan,
    MemoryBudget,
    amount,
    format_bytes,
    format_share,
    table,
)

from ._explain import explain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A range of a loss's operations that is treated alike.

    Attributes:
        start: first operation.
        stop: one past the last.
        gate: how it is done again in the backward pass (`_gates.py`); None if what
            the backward pass needs of it is kept instead.
        saved_bytes: kept for it from the forward to the backward pass, by the model.
        recomputed_flops: done again for it, by the model.
        kept: operations in it whose results are kept though others are done again.
        inside: the plan by which it is done again; () if by keeping, for as long as
            that takes, everything that its backward pass needs.
        what: the operations in it, in a few words.
        peak_bytes: held while its backward pass runs, by the model.
    """

    start: int
    stop: int
    gate: Literal["cond", "select", "barrier"] | None
    saved_bytes: int
    recomputed_flops: int
    kept: tuple[int, ...] = ()
    inside: tuple["Segment", ...] = ()
    what: str = ""
    peak_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A range of the operations in a loop's body or a branch.

    Attributes:
        start: first operation.
        stop: one past the last.
        kept: operations whose results are kept, while the others are done again; None:
            all that the backward pass needs is kept.
    """

    start: int
    stop: int
    kept: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Recompute:
    """How the body of a `lax.scan`, or one branch of a `lax.cond`, is done again.

    Attributes:
        pieces: its operations, in order; (): all that the backward pass needs is kept.
        rounds: of how many rounds of a chunk this is so; 1 in a branch.
        together: whether these rounds are done again together, and only the carry
            before them is kept until then.
        inner: how the scans and conds in the body are treated.
    """

    pieces: tuple[Chunk, ...] = ()
    rounds: int = 1
    together: bool = False
    inner: tuple["BodyPlan", ...] = ()

    def __str__(self) -> str:
        if self.together:
            said = "done again together from the carry before them"
        else:
            said = "done again" if self.pieces else "kept"
        said += f" in {len(self.pieces)} pieces" if len(self.pieces) > 1 else ""
        kept = sum(len(p.kept or ()) for p in self.pieces)
        said += f" but for {kept} results" if kept else ""
        return said + "".join(f" ({i})" for i in self.inner)


@dataclasses.dataclass(frozen=True, slots=True)
class BodyPlan:
    """How a `lax.scan` or `lax.cond` of a loss is done again.

    Attributes:
        place: which of the traced operations it is.
        bodies: of a cond, its branches; of a scan, the rounds of each chunk, in order.
        kind: which of the two it is.
    """

    place: int
    bodies: tuple[Recompute, ...]
    kind: Literal["scan", "cond"] = "scan"

    @property
    def chunk(self) -> int:
        """Rounds of a scan that are treated together; they divide its rounds."""
        return sum(b.rounds for b in self.bodies)

    def __str__(self) -> str:
        if self.kind == "cond":
            parts = [f"branch {i} {b}" for i, b in enumerate(self.bodies)]
        elif self.chunk == 1:
            parts = [f"each round {self.bodies[0]}"]
        else:
            parts = [f"of every {self.chunk} rounds"]
            parts += [f"{b.rounds} {b}" for b in self.bodies]
        return f"{self.kind} at {self.place}: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RematPlan(JsonPlan):
    """How a backward pass is fitted into a memory budget.

    Attributes:
        budget: what it was made for.
        predicted: bytes of the program with this plan, of the budget's kind, as XLA
            accounted for them when the plan was made; <= the limit.
        unplanned_bytes: bytes of the same program without a plan.
        extra_flops: done a second time, counted on the traced program.
        unplanned_flops: of the loss and its gradients without a plan.
        insides: what is done again inside scans and conds; those that are not named
            stay as they are.
        segments: the parts, in order, of the loss with its scans and conds so; empty
            if everything is kept.
        fingerprint: names the traced loss; a plan fits no other.
        argnums: which arguments are differentiated.
        has_aux: whether the loss returns more than a number.
        compiles: how many programs were compiled to find it.
    """

    budget: MemoryBudget
    predicted: int
    unplanned_bytes: int
    extra_flops: int
    unplanned_flops: int
    insides: tuple[BodyPlan, ...]
    segments: tuple[Segment, ...]
    fingerprint: str
    argnums: int | tuple[int, ...]
    has_aux: bool
    compiles: int

    @property
    def extra_share(self) -> float:
        """`extra_flops` as a share of what the unplanned program does."""
        return self.extra_flops / max(self.unplanned_flops, 1)

    def explain(self) -> str:
        """The plan as a table: what each segment holds, keeps and does again, and why.

        `str(plan)` is shorter; `picture` shows the same over time.
        """
        return explain(
            budget=self.budget,
            predicted=self.predicted,
            unplanned_bytes=self.unplanned_bytes,
            extra_flops=self.extra_flops,
            unplanned_flops=self.unplanned_flops,
            compiles=self.compiles,
            insides=[str(i) for i in self.insides],
            segments=self.segments,
        )

    def __str__(self) -> str:
        rows = [
            [
                f"{s.start}-{s.stop - 1}",
                f"recompute ({s.gate})" if s.gate else "keep",
                amount(s.saved_bytes, "bytes"),
                f"{s.recomputed_flops:,}",
            ]
            for s in self.segments
        ]
        head = ["operations", "backward pass", "saved", "flops again"]
        total = (
            f"{self.budget}: {format_bytes(self.predicted)} measured with this plan, "
            f"{format_bytes(self.unplanned_bytes)} without; "
            f"{format_share(self.extra_share)} more flops"
        )
        kept = [["all", "keep", "-", "0"]]
        return "\n".join([total, *map(str, self.insides), table(head, rows or kept)])
