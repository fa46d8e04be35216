"""`RematPlan`: the parts of a loss that the backward pass keeps or recomputes."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from frugax.budget import (
    MemoryBudget,
    Plan,
    amount,
    format_bytes,
    format_seconds,
    format_share,
    table,
)

from ._frontier import Frontier, TriedPlan

_GATE_REASONS = {
    "cond": "a branch that opens only once the gradient is known: least memory",
    "select": "inputs wait for the gradient: this convolution is slow in a branch",
    "barrier": "an optimisation barrier, which this kind of device keeps",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A range of a loss's operations that are treated alike.

    Attributes:
        start: first operation.
        stop: one past the last operation.
        gate: what keeps the compiler from undoing it (docs/maintainers.md); None
            if the segment keeps everything that its backward pass needs.
        saved_bytes: bytes kept for it from the forward to the backward pass, by the
            model.
        recomputed_flops: flops of its recomputation, by the model.
        kept: operations whose results are kept although others are recomputed.
        nested: the plan by which the segment is recomputed; () if it is recomputed at
            once, keeping all residuals for as long as its backward pass takes.
        summary: its operations in a few words.
        peak_bytes: bytes held while its backward pass runs, by the model.
    """

    start: int
    stop: int
    gate: Literal["cond", "select", "barrier"] | None
    saved_bytes: int
    recomputed_flops: int
    kept: tuple[int, ...] = ()
    nested: tuple["Segment", ...] = ()
    summary: str = ""
    peak_bytes: int = 0

    @property
    def range(self) -> str:
        """First and last operation, as the tables show them."""
        return f"{self.start}-{self.stop - 1}"


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A range of the operations in a loop's body or in a branch.

    Attributes:
        start: first operation.
        stop: one past the last operation.
        kept: operations whose results are kept while the others are recomputed; None
            keeps everything that the backward pass needs.
    """

    start: int
    stop: int
    kept: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Recompute:
    """How the body of a `lax.scan`, or one branch of a `lax.cond`, is recomputed.

    Attributes:
        chunks: its operations, in order; () keeps everything that the backward pass
            needs.
        iterations: the number of iterations of a group that this holds for; 1 in a
            branch.
        from_carry: whether these iterations are recomputed together, so that only the
            carry before the first of them is kept.
        body_plans: how the scans and conds inside the body are recomputed.
        levels: lengths of groups within groups of iterations, the longest first, if the
            carry before each group is kept, and within one group that before each
            shorter one; () for one level.
        in_host_memory: what each iteration keeps in the host's memory, and not in the
            device's: its carry, or also its results; None for nothing.
    """

    chunks: tuple[Chunk, ...] = ()
    iterations: int = 1
    from_carry: bool = False
    body_plans: tuple["BodyPlan", ...] = ()
    levels: tuple[int, ...] = ()
    in_host_memory: Literal["carry", "all"] | None = None

    def __str__(self) -> str:
        if self.levels:
            lengths = ", and within these of ".join(map(str, self.levels))
            words = [f"recomputed from the carry before groups of {lengths}"]
            return " ".join([*words, *(f"({b})" for b in self.body_plans)])
        if self.from_carry:
            words = ["recomputed together from the carry before them"]
        elif self.chunks:
            words = ["recomputed"]
        else:
            words = ["kept"]
        if len(self.chunks) > 1:
            words.append(f"in {len(self.chunks)} chunks")
        if kept := sum(len(c.kept or ()) for c in self.chunks):
            words.append(f"except for {kept} results")
        if self.in_host_memory:
            what = "its carry is" if self.in_host_memory == "carry" else "all kept is"
            words.append(f"({what} in the host's memory)")
        return " ".join([*words, *(f"({b})" for b in self.body_plans)])


@dataclasses.dataclass(frozen=True, slots=True)
class BodyPlan:
    """How one `lax.scan` or `lax.cond` of a loss is recomputed.

    Attributes:
        operation: its index among the traced operations.
        bodies: for a cond, one entry for each branch; for a scan, the treatments of
            consecutive iterations, which repeat from group to group.
        kind: "scan" or "cond".
    """

    operation: int
    bodies: tuple[Recompute, ...]
    kind: Literal["scan", "cond"] = "scan"

    @property
    def group_length(self) -> int:
        """Iterations of a scan after which the treatment repeats."""
        return sum(b.iterations for b in self.bodies)

    def __str__(self) -> str:
        if self.kind == "cond":
            parts = [f"branch {i} {b}" for i, b in enumerate(self.bodies)]
        elif self.group_length == 1 or self.bodies[0].levels:
            parts = [f"each iteration {self.bodies[0]}"]
        else:
            parts = [f"of every {self.group_length} iterations"]
            parts += [f"{b.iterations} {b}" for b in self.bodies]
        return f"{self.kind} at {self.operation}: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True, slots=True)
class BatchChunks:
    """How a loss runs on one chunk of its batch after another.

    Attributes:
        count: the number of chunks.
        operand: the input that names the batch, counted over the arrays that the loss
            closes over and the leaves of its arguments.
        axis: the axis of that input that holds the batch.
        devices: the number of devices over which the batch is divided. Each chunk takes
            as many rows from all of them.
        segments: the plan of one chunk; () keeps everything until its backward pass.
        body_plans: how scans and conds within a chunk recompute.
    """

    count: int
    operand: int
    axis: int
    devices: int = 1
    segments: tuple[Segment, ...] = ()
    body_plans: tuple[BodyPlan, ...] = ()

    def __str__(self) -> str:
        again = [s for s in self.segments if s.gate]
        inside = "nothing is computed twice"
        if again or self.body_plans:
            parts = [f"operations {s.range} recomputed" for s in again[:3]]
            if len(again) > 3:
                parts.append(f"{len(again) - 3} more segments")
            inside = "; ".join([*parts, *map(str, self.body_plans)])
        return f"the batch in {self.count} chunks, one after another ({inside})"


@dataclasses.dataclass(frozen=True, slots=True)
class LateCopies:
    """Blocks of a loss that are computed again before their results are read late.

    A loss that takes a gradient inside reads the results of its first layers late.

    Attributes:
        runs: the edges of consecutive blocks of operations, for each run of blocks.
        gate: what keeps the compiler from merging them with the first computation.
    """

    runs: tuple[tuple[int, ...], ...]
    gate: Literal["select", "barrier"]

    def __str__(self) -> str:
        parts = [f"{len(r) - 1} blocks from {r[0]} to {r[-1] - 1}" for r in self.runs]
        return f"computed again where the loss reads them late: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True, slots=True)
class RowChunks:
    """How parts of a loss that treat rows one by one run in chunks of these rows.

    Attributes:
        count: the number of chunks.
        length: the number of rows.
    """

    count: int
    length: int

    def __str__(self) -> str:
        return (
            f"operations that treat the {self.length} rows one by one run in "
            f"{self.count} chunks, all others on whole arrays"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanParts:
    """The recomputation that a plan states; by default there is none.

    Attributes:
        segments: consecutive parts of the loss whose scans and conds follow
            `body_plans`; empty if everything is kept.
        body_plans: how scans and conds are recomputed; those that are not listed stay
            as they are.
        batch: how the loss runs in chunks of its batch; None if it runs whole.
        is_opened: whether the loss's own `jax.checkpoint` regions are opened, and
            planned like the rest.
        shard_map: the operation, a `jax.shard_map`, in whose body the plan applies, on
            each device; None if the plan is one for the loss itself.
        copies: blocks that are computed again before the loss itself, which takes a
            gradient inside, reads their results late; None if nothing is.
        rows: how parts of a loss that mixes the rows of its batch run in chunks of
            these; None if they run whole. `segments` and `body_plans` are of the loss
            with loops over these chunks.
    """

    segments: tuple[Segment, ...] = ()
    body_plans: tuple[BodyPlan, ...] = ()
    batch: BatchChunks | None = None
    is_opened: bool = False
    shard_map: int | None = None
    copies: LateCopies | None = None
    rows: RowChunks | None = None

    @property
    def moves_to_host(self) -> bool:
        """Whether scans keep values in the host's memory."""
        return any(b.in_host_memory for p in self.body_plans for b in p.bodies)

    @property
    def summary(self) -> str:
        """The recomputation, in a few words."""
        batch = self.batch
        segments = (batch.segments if batch else ()) or self.segments
        loops = (batch.body_plans if batch else ()) or self.body_plans
        again = sum(s.gate is not None for s in segments)
        kept = sum(len(s.kept) for s in segments if s.gate)
        words = [f"{batch.count} chunks of the batch"] if batch else []
        if self.copies:
            words.append(f"{sum(len(r) - 1 for r in self.copies.runs)} layers copied")
        if self.rows:
            words.append(f"{self.rows.count} chunks of parts")
        if again:
            words.append(f"{again} segments" + f" but for {kept} results" * (kept > 0))
        if loops:
            words.append(f"{len(loops)} loops or branches")
        if self.moves_to_host:
            words.append("values in the host's memory")
        return ", ".join(words) or "nothing"


# No `slots`: `super()` fails in a dataclass that is built anew to have them.
@dataclasses.dataclass(frozen=True, kw_only=True)
class RematPlan(PlanParts, Plan):
    """How a backward pass is fitted into a memory budget.

    Attributes:
        segments, body_plans, batch, is_opened, shard_map, copies, rows: what is
            recomputed, and what runs in chunks, as of `PlanParts`.
        budget: the budget it was made for.
        predicted: bytes of the program with this plan, of the budget's kind, as XLA
            reported them when the plan was made; at most the limit.
        unplanned_bytes: bytes of the same program without a plan. On a CPU it is
            compiled quickly where it does not fit: within 0.1% of what runs.
        extra_flops: recomputed flops, counted on the traced program.
        unplanned_flops: flops of the loss and its gradients without a plan.
        fingerprint: identifies the traced loss; a plan fits no other.
        argnums: the arguments that are differentiated.
        has_aux: whether the loss returns more than a number.
        compiles: the number of programs that were compiled to find the plan.
        target: the devices whose compiler measured it;
        platform: their platform, on which alone the plan is applied.
        caveat: how the measurement may differ from one on a real device.
        shard_shapes: the shape of each array of the arguments on one device; () if they
            were planned for a single device.
        tried: the programs that were compiled to find the plan, by falling bytes.
        host_bytes: bytes that are moved to the host's memory in the forward pass and
            back in the backward pass, as XLA reported them.
        cut_after_s: the seconds of `within_s`, if the search ended because they were
            over; a longer one may find a cheaper plan. None if it ended by itself.
    """

    budget: MemoryBudget
    predicted: int
    unplanned_bytes: int
    extra_flops: int
    unplanned_flops: int
    fingerprint: str
    argnums: int | tuple[int, ...]
    has_aux: bool
    compiles: int
    target: str = ""
    platform: str = ""
    caveat: str = ""
    shard_shapes: tuple[tuple[int, ...], ...] = ()
    tried: tuple[TriedPlan, ...] = ()
    host_bytes: int = 0
    cut_after_s: float | None = None

    @property
    def extra_share(self) -> float:
        """`extra_flops` as a share of the flops without a plan."""
        return self.extra_flops / max(self.unplanned_flops, 1)

    def frontier(self) -> Frontier:
        """The bytes and flops of all programs that were compiled to find the plan.

        `str` of it is a table, and `save` writes a picture.
        """
        return Frontier(
            tried=self.tried,
            budget=self.budget,
            predicted=self.predicted,
            unplanned_bytes=self.unplanned_bytes,
            unplanned_flops=self.unplanned_flops,
        )

    def explain(self) -> str:
        """The plan as a table: what each segment holds, keeps and recomputes, and why.

        `str(plan)` is shorter; `draw_memory` shows the same over time.
        """
        limit, flops = self.budget.usable_bytes, max(self.unplanned_flops, 1)
        verdict = "fits" if self.predicted <= limit else "does not fit"
        lines = [
            f"{verdict} {self.budget}: {format_bytes(self.predicted)} measured, "
            f"{format_share(self.predicted / limit)} of the limit",
            *self._describe_target(),
            f"without a plan: {format_bytes(self.unplanned_bytes)}, "
            f"{format_share(self.unplanned_bytes / limit)} of the limit",
            *self.frontier().describe_neighbours(),
            f"recomputed: {self.extra_flops:,} flops, "
            f"{format_share(self.extra_flops / flops)} more; "
            f"programs compiled to find this plan: {self.compiles}",
            *self._describe_cut(),
            *map(str, self._other_levers),
            "",
        ]
        if not self.segments:
            if not self._other_levers:
                lines.append("everything is kept for the backward pass")
            return "\n".join(lines).rstrip()
        head = ["operations", "contents", "backward pass", "keeps"]
        head += ["recomputed flops", "more"]
        rows = list(_walk(self.segments))
        lines += [table(head, [_row(s, depth, flops) for s, depth in rows]), ""]
        highest = max(self.segments, key=lambda s: s.peak_bytes)
        if highest.peak_bytes:
            lines.append(
                f"the peak is at the backward pass of {highest.range}: "
                f"{format_bytes(highest.peak_bytes)} by the model"
            )
        used = {s.gate for s, _ in rows}
        lines += [
            f"{gate}: {why}" for gate, why in _GATE_REASONS.items() if gate in used
        ]
        return "\n".join(lines)

    def _describe_target(self) -> list[str]:
        if not self.target:
            return []
        line = f"measured by the compiler for {self.target}, bytes of one device"
        return [f"{line}; {self.caveat}" if self.caveat else line]

    def _describe_cut(self) -> list[str]:
        if self.cut_after_s is None:
            return []
        seconds = format_seconds(self.cut_after_s)
        return [f"the search ended after {seconds}, and took the best plan so far"]

    def __str__(self) -> str:
        rows = [
            [
                s.range,
                _treatment(s),
                amount(s.saved_bytes, "bytes"),
                f"{s.recomputed_flops:,}",
            ]
            for s in self.segments
        ]
        head = ["operations", "backward pass", "saved", "recomputed flops"]
        total = (
            f"{self.budget}: {format_bytes(self.predicted)} measured with this plan, "
            f"{format_bytes(self.unplanned_bytes)} without; "
            f"{format_share(self.extra_share)} more flops"
        )
        shown = table(head, rows or [["all", "keep", "-", "0"]])
        notes = [*self._describe_cut(), *map(str, self._other_levers)]
        return "\n".join([total, *notes, shown])

    @property
    def _other_levers(self) -> list[object]:
        """The parts of the plan beside its segments, for the tables."""
        opened = ["the loss's own jax.checkpoint regions are opened"]
        batch = [self.batch] if self.batch else []
        inside = [f"on each device, in the shard_map at operation {self.shard_map}:"]
        moved = f"{format_bytes(self.host_bytes)} to the host's memory, and back again"
        return [
            *(inside if self.shard_map is not None else []),
            *batch,
            *([self.copies] if self.copies else []),
            *([self.rows] if self.rows else []),
            *(opened if self.is_opened else []),
            *self.body_plans,
            *([moved] if self.host_bytes else []),
        ]


def check_ranges(parts: Sequence[Segment | Chunk], start: int, stop: int) -> None:
    """Check that consecutive parts cover the operations from `start` to `stop`.

    Raises:
        ValueError: they leave an operation out, or name one that does not exist.
    """
    edges = [start, *(p.stop for p in parts)]
    consecutive = [p.start for p in parts] == edges[:-1] and edges[-1] == stop
    if not consecutive or edges != sorted(edges):
        raise ValueError(
            f"damaged plan: its parts, which end at {edges[1:]}, do not cover the "
            f"{stop - start} operations from {start} on. Plan again with remat.plan."
        )
    for p in parts:
        if unknown := {*(p.kept or ())} - {*range(p.start, p.stop)}:
            raise ValueError(
                f"damaged plan: the part of operations {p.start} to {p.stop - 1} keeps "
                f"operation {max(unknown)}. Plan again with remat.plan."
            )
        if isinstance(p, Segment) and p.nested:
            check_ranges(p.nested, p.start, p.stop)


def _walk(segments: Sequence[Segment], depth: int = 0) -> Iterator[tuple[Segment, int]]:
    for s in segments:
        yield s, depth
        yield from _walk(s.nested, depth + 1)


def _row(segment: Segment, depth: int, flops: int) -> list[Any]:
    treatment = _treatment(segment)
    if segment.kept:
        treatment += f", {len(segment.kept)} kept"
    return [
        "  " * depth + segment.range,
        segment.summary or "-",
        treatment,
        amount(segment.saved_bytes, "bytes"),
        f"{segment.recomputed_flops:,}",
        format_share(segment.recomputed_flops / flops),
    ]


def _treatment(segment: Segment) -> str:
    return f"recompute ({segment.gate})" if segment.gate else "keep"
