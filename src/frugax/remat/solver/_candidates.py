"""List candidate plans worth compiling, the plain one first, by falling peak memory."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from frugax.jaxprs import MARKS, JaxprEqn, flops_of, is_heavy

from .._plan import BatchChunks, BodyPlan, LateCopies, RowChunks, Segment
from ..rewrite import (
    RematGraph,
    choose_gate,
    chunk_batch,
    chunk_rows,
    copy_late,
    reads_late_from,
    rewrite_loops,
    split_batch,
)
from ._batch_choices import (
    SMALL_SHARE,
    FoundBatch,
    chunk_counts,
    find_batch,
    find_row_count,
    plain_peak,
    spread_counts,
)
from ._chain_dp import (
    DraftPlan,
    SegmentChoice,
    SegmentUsage,
    draft_plans,
    evaluate_segments,
)
from ._loop_choices import (
    LoopChoices,
    list_choices_in_host_memory,
    list_loop_choices,
)
from ._named_policies import NamedPlan, list_named_plans
from ._repeated_blocks import Edges, find_blocks
from ._segment_costs import SegmentCosts

# Plans that recompute more than this many forward passes are left out, in segments and
# with loops. Each level of groups within groups of a scan's iterations is one.
_MAX_FORWARD_PASSES = 2.0
_MAX_LOOP_PASSES = 4.0
# Chunks of the batch that cost at most this share of the forward pass are tried before
# anything is modelled.
_CHEAP_CHUNKS = 0.03
# A plan without recomputed segments needs no costs of segments.
_NO_COSTS = SegmentCosts({}, 0)
# Kinds of operations that a segment's summary names; the rest are counted.
_MAX_NAMED_KINDS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that has not been compiled yet.

    Attributes:
        loops: how scans and conds recompute.
        body: the loss, or one chunk of it, with its scans and conds rewritten so.
        costs: the costs of its segments.
        draft: the segments that are recomputed.
        batch: the chunks of the batch that the loss runs in; None if it runs whole.
        carried_bytes: bytes that the loop over chunks carries.
        is_chunk: whether `body` and the rest are one chunk, and not the whole loss.
        is_opened: whether the loss's own `jax.checkpoint` regions are opened.
        copies: blocks that are computed again before the loss reads them late.
        copied_flops: flops of these.
        rows: the chunks of parts that treat rows one by one; None if they run whole.
    """

    loops: LoopChoices
    body: RematGraph
    costs: SegmentCosts
    draft: DraftPlan
    batch: BatchChunks | None = None
    carried_bytes: int = 0
    is_chunk: bool = False
    is_opened: bool = False
    copies: LateCopies | None = None
    copied_flops: int = 0
    rows: RowChunks | None = None

    @property
    def body_plans(self) -> tuple[BodyPlan, ...]:
        """How scans and conds recompute."""
        return self.loops.body_plans

    @property
    def family(self) -> Hashable:
        """Its levers: the model errs alike about the bytes of plans that share them."""
        return (
            len(self.draft.choices) > 1,
            bool(self.body_plans),
            self.batch is not None,
            self.rows is not None,
            self.copies is not None,
            self.is_opened,
        )

    @property
    def peak_bytes(self) -> int:
        """Most bytes held during the backward pass, by the model."""
        return self.draft.peak_bytes + self.carried_bytes

    @property
    def flops(self) -> int:
        """Additional flops, by the model."""
        flops = self.loops.flops + self.draft.flops + self.copied_flops
        if self.batch is None:
            return flops
        count = self.batch.count
        # Each chunk adds its gradients, mostly of four bytes a number, to the sum.
        added = count * self.carried_bytes // 4
        return added + flops * (count if self.is_chunk else 1)


def list_candidates(
    body: RematGraph,
    block_size: int | None = None,
    *,
    opened: RematGraph | None = None,
    divide_batch: bool = False,
    copies_late: bool = False,
    platform: str = "cpu",
) -> list[Candidate]:
    """Plans of ever smaller modelled peak, the plain one first.

    Only Pareto-optimal plans are listed: no other plan needs neither more bytes nor
    more flops. The list does not depend on any budget.
    """
    plain, *rest = _list_whole(body, block_size)
    if divide_batch:
        rest += _list_with_chunks(body, block_size)
    if copies_late:
        rest += _list_with_copies(body, block_size, platform)
    if opened is not None:
        # The plain opened loss is a choice, too: the user's regions may cost too much.
        again = _list_whole(opened, block_size)
        # The model believes that compilers keep to the user's regions. Where one does
        # not, the plain loss holds as much as the opened one.
        more = max(again[0].peak_bytes - plain.peak_bytes, 0)
        plain = dataclasses.replace(plain, carried_bytes=more)
        if divide_batch:
            again += _list_with_chunks(opened, block_size)
        rest += [dataclasses.replace(c, is_opened=True) for c in again]
    return _keep_optimal(body, plain, rest)


@dataclasses.dataclass(frozen=True, eq=False)
class NamedCandidate:
    """A candidate that a user could write by hand, made where it is compiled.

    Attributes:
        peak_bytes: as of `Candidate`.
        flops: as of `Candidate`.
        is_uniform: as of `NamedPlan`.
    """

    peak_bytes: int
    flops: int
    is_uniform: bool
    _plan: NamedPlan
    _extra: dict[str, Any]

    @classmethod
    def of(cls, plan: NamedPlan, extra: dict[str, Any]) -> "NamedCandidate":
        """This plan, with further attributes of the candidate that it becomes."""
        draft = DraftPlan((), plan.peak_bytes, plan.flops)
        # The loops' flops are among the plan's.
        figures = Candidate(LoopChoices(), plan.source, _NO_COSTS, draft, **extra)
        return cls(figures.peak_bytes, figures.flops, plan.is_uniform, plan, extra)

    @property
    def family(self) -> Hashable:
        """As of `Candidate`."""
        return "named", *sorted(self._extra)

    @functools.cached_property
    def candidate(self) -> Candidate:
        """The candidate itself."""
        costs, draft = self._plan.segments
        return Candidate(self._plan.loops, self._plan.body, costs, draft, **self._extra)


def list_named(
    body: RematGraph,
    *,
    opened: RematGraph | None = None,
    divide_batch: bool = False,
    copies_late: bool = False,
    platform: str = "cpu",
) -> list[NamedCandidate]:
    """Blocks and iterations under named policies, see `_named_policies.py`.

    Where the loss runs in chunks, they are those of a chunk.
    """
    sources: list[tuple[RematGraph, dict[str, Any]]] = [(body, {})]
    if opened is not None:
        sources.append((opened, {"is_opened": True}))
    if copies_late and (found := _copy_layers(body, platform)):
        # Without copies, they were tried before.
        copied, copies, flops = found
        sources = [(copied, {"copies": copies, "copied_flops": flops})]
    if divide_batch:
        for whole in (body, opened):
            if whole is not None and (divided := _in_smallest_chunks(whole)):
                chunk, extra = divided
                sources.append((chunk, extra | {"is_opened": whole is opened}))
    return [
        NamedCandidate.of(plan, extra)
        for source, extra in sources
        for plan in list_named_plans(source)
    ]


def reads_late(body: RematGraph) -> bool:
    """Whether operations read results of much earlier layers, from their inside."""
    return bool(_late_runs(body))


def _late_runs(body: RematGraph) -> tuple[Edges, ...]:
    return tuple(r for r in find_blocks(body) if reads_late_from(body, r))


def _list_with_copies(
    body: RematGraph, block_size: int | None, platform: str
) -> Iterator[Candidate]:
    """Plans for the loss that computes layers again where it reads them late."""
    if found := _copy_layers(body, platform):
        copied, copies, flops = found
        for c in _list_whole(copied, block_size):
            yield dataclasses.replace(c, copies=copies, copied_flops=flops)


def _copy_layers(
    body: RematGraph, platform: str
) -> tuple[RematGraph, LateCopies, int] | None:
    """The loss with its layers copied, and the flops of the copies."""
    key = "copied", platform
    if key not in body.memo:
        body.memo[key] = _find_copies(body, platform)
    return body.memo[key]


def _find_copies(
    body: RematGraph, platform: str
) -> tuple[RematGraph, LateCopies, int] | None:
    runs = _late_runs(body)
    if not runs:
        return None
    copies = LateCopies(runs, "select" if platform == "cpu" else "barrier")
    copied = copy_late(body, copies)
    more = sum(map(flops_of, copied.eqns)) - sum(map(flops_of, body.eqns))
    # The copies have a backward pass of their own, of twice their flops.
    return copied, copies, 3 * more


def list_chunked(body: RematGraph) -> list[Candidate]:
    """Plans that only divide the batch and cost next to nothing, the plain one first.

    The plain plan is alone if the batch of this loss cannot be divided.
    """
    plain = _keep_all(body)
    found = find_batch(body)
    if found is None or found.whole_share >= SMALL_SHARE:
        return [plain]
    limit = _CHEAP_CHUNKS * sum(map(flops_of, body.eqns))
    cheap = [c for c in _divide_batch(body, found) if c.flops <= limit]
    return _keep_optimal(body, plain, cheap)


def list_in_rows(
    body: RematGraph, block_size: int | None, *, opened: RematGraph | None = None
) -> list[Candidate]:
    """Plans that run parts of the loss in chunks of rows, the plain plan first.

    The plain plan is alone if the loss can run in chunks of its batch as a whole, or if
    nothing in it treats rows one by one.
    """
    plain = _keep_all(body)
    rest = [
        dataclasses.replace(c, **extra)
        for source, extra in _in_row_chunks(
            opened or body, is_opened=opened is not None
        )
        for c in _list_whole(source, block_size)
    ]
    return _keep_optimal(body, plain, rest)


def list_named_in_rows(
    body: RematGraph, *, opened: RematGraph | None = None
) -> list[NamedCandidate]:
    """Chunks of rows, and all other loops and blocks, under named policies."""
    return [
        NamedCandidate.of(plan, extra)
        for source, extra in _in_row_chunks(
            opened or body, is_opened=opened is not None
        )
        for plan in list_named_plans(source)
    ]


def _in_row_chunks(
    body: RematGraph, *, is_opened: bool
) -> list[tuple[RematGraph, dict[str, Any]]]:
    """The loss with parts in chunks of rows, and attributes of candidates for it."""
    if "rows" not in body.memo:
        found = find_batch(body)
        length = None
        if found is None or found.whole_share >= SMALL_SHARE:
            length = find_row_count(body)
        chunks: list[RowChunks] = []
        if length is not None:
            chunks = [RowChunks(count, length) for count in spread_counts(length)]
        body.memo["rows"] = [
            (chunk_rows(body, rows), {"rows": rows, "is_opened": is_opened})
            for rows in chunks
        ]
    return body.memo["rows"]


def list_in_host_memory(body: RematGraph) -> list[Candidate]:
    """Plans that keep values of scans in the host's memory, the plain plan first."""
    plain = _keep_all(body)
    peak = plain.peak_bytes
    found: list[Candidate] = []
    for loops, change in list_choices_in_host_memory(body):
        named = NamedPlan(loops, max(peak + change, 0), loops.flops, True, body)
        found.append(Candidate(loops, named.body, *named.segments))
    return _keep_optimal(body, plain, found)


def _keep_all(body: RematGraph) -> Candidate:
    draft = DraftPlan((), plain_peak(body), 0)
    return Candidate(LoopChoices(), body, _NO_COSTS, draft)


def _keep_optimal(
    body: RematGraph, plain: Candidate, rest: Sequence[Candidate]
) -> list[Candidate]:
    forward_flops = sum(map(flops_of, body.eqns))
    fewest_flops = _MAX_LOOP_PASSES * forward_flops
    # By rising peak, a plan is optimal if it costs less than all plans below it.
    optimal: list[Candidate] = []
    for c in sorted(rest, key=lambda c: (c.peak_bytes, c.flops)):
        if c.flops - c.loops.flops >= _MAX_FORWARD_PASSES * forward_flops:
            continue
        if c.flops < fewest_flops and c.peak_bytes < plain.peak_bytes:
            fewest_flops = c.flops
            optimal.append(c)
    return [plain, *reversed(optimal)]


def _list_whole(body: RematGraph, block_size: int | None) -> list[Candidate]:
    key = "whole", block_size
    if key not in body.memo:  # several stages of the search list it
        found: list[Candidate] = []
        for loops in list_loop_choices(body):
            rewritten = rewrite_loops(body, loops.body_plans, dict(loops.scratch_bytes))
            costs, drafts = draft_plans(rewritten, block_size)
            found += [Candidate(loops, rewritten, costs, d) for d in drafts]
        body.memo[key] = found
    return body.memo[key]


def _divide_batch(body: RematGraph, found: FoundBatch) -> list[Candidate]:
    """The loss in fewer or more chunks, in which nothing is recomputed."""
    if "divided" not in body.memo:
        body.memo["divided"] = _list_divided(body, found)
    return body.memo["divided"]


def _list_divided(body: RematGraph, found: FoundBatch) -> list[Candidate]:
    counts = chunk_counts(found.split.batch // found.chunks.devices)
    most = dataclasses.replace(found.chunks, count=counts[-1])
    smallest = split_batch(body, most)
    # The bytes that a chunk holds are proportional to its length.
    peak = plain_peak(smallest.chunk) * most.count
    return [
        Candidate(
            LoopChoices(),
            smallest.chunk,
            _NO_COSTS,
            DraftPlan((), peak // count, 0),
            batch=dataclasses.replace(most, count=count),
            carried_bytes=smallest.accumulated_bytes,
            is_chunk=True,
        )
        for count in counts
    ]


def _list_with_chunks(body: RematGraph, block_size: int | None) -> Iterator[Candidate]:
    """The loss in chunks of its batch, and in the smallest ones with recomputation."""
    found = find_batch(body)
    if found is None:
        return
    if found.whole_share < SMALL_SHARE:
        yield from _divide_batch(body, found)
    if smallest := _in_smallest_chunks(body):
        source, extra = smallest
        for c in _list_whole(source, block_size):
            yield dataclasses.replace(c, **extra)


def _in_smallest_chunks(body: RematGraph) -> tuple[RematGraph, dict[str, Any]] | None:
    """What to plan for the smallest chunks, and attributes of a candidate for it."""
    if "smallest" not in body.memo:
        body.memo["smallest"] = _find_smallest_chunks(body)
    return body.memo["smallest"]


def _find_smallest_chunks(
    body: RematGraph,
) -> tuple[RematGraph, dict[str, Any]] | None:
    found = find_batch(body)
    if found is None:
        return None
    divided = _divide_batch(body, found)
    if found.whole_share < SMALL_SHARE:
        smallest = divided[-1]
        extra = {"batch": smallest.batch, "is_chunk": True}
        return smallest.body, extra | {"carried_bytes": smallest.carried_bytes}
    # Only the end of the loss runs in chunks, such as the logits and the loss of a
    # language model. A few chunks of it hold little enough beside the rest.
    limit = plain_peak(body) // 16
    chosen = next((c for c in divided if c.draft.peak_bytes < limit), divided[-1])
    assert chosen.batch is not None
    rest = chunk_batch(body, chosen.batch)
    loop = [e for e in rest.eqns if e.primitive.name == "custom_vjp_call"][-1]
    scratch = {loop.outvars[0]: chosen.peak_bytes}
    rest = dataclasses.replace(rest, scratch_bytes=scratch)
    return rest, {"batch": chosen.batch}


@dataclasses.dataclass(frozen=True, slots=True)
class PlanParts:
    """The parts of a `RematPlan` that state the recomputation."""

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


def build_parts(candidate: Candidate, platform: str) -> PlanParts:
    """A candidate as the parts of a plan, with gates that suit this platform."""
    segments = build_segments(candidate, platform)
    if candidate.batch is None or not candidate.is_chunk:
        return PlanParts(
            segments,
            candidate.body_plans,
            candidate.batch,
            candidate.is_opened,
            copies=candidate.copies,
            rows=candidate.rows,
        )
    if all(s.gate is None for s in segments):
        segments = ()
    inside = {"segments": segments, "body_plans": candidate.body_plans}
    batch = dataclasses.replace(candidate.batch, **inside)
    return PlanParts(batch=batch, is_opened=candidate.is_opened)


def build_segments(candidate: Candidate, platform: str) -> tuple[Segment, ...]:
    """A candidate's segments, each with the gate that suits this platform."""
    costs, eqns = candidate.costs, candidate.body.eqns
    # Plans do not count marks, which are there only inside of a `shard_map`.
    is_counted = [e.primitive.name not in MARKS for e in eqns]
    number = list(itertools.accumulate(is_counted, initial=0))

    def segment(choice: SegmentChoice, usage: SegmentUsage) -> Segment:
        cost = costs.of[choice.start, choice.stop, choice.mode]
        own = eqns[choice.start : choice.stop]
        return Segment(
            start=number[choice.start],
            stop=number[choice.stop],
            gate=choose_gate(own, platform) if choice.mode else None,
            saved_bytes=cost.stored_bytes,
            recomputed_flops=cost.flops,
            kept=tuple(number[i] for i in cost.kept),
            nested=_drop_empty(map(segment, choice.nested, usage.nested)),
            summary=describe_operations(own),
            peak_bytes=usage.peak_bytes,
        )

    choices = candidate.draft.choices
    return _drop_empty(map(segment, choices, evaluate_segments(costs, choices)))


def _drop_empty(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    return tuple(s for s in segments if s.start < s.stop)


def describe_operations(eqns: Sequence[JaxprEqn]) -> str:
    """Summarise operations in a few words, the expensive kinds first.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((2, 2))
        >>> describe_operations(jax.make_jaxpr(lambda x: jnp.sin(x @ x) @ x)(x).eqns)
        'dot_general x2, sin'
    """
    counts = Counter(e.primitive.name for e in eqns)
    heavy = {e.primitive.name for e in eqns if is_heavy(e)}
    moves = {e.primitive.name for e in eqns if not flops_of(e)}
    names = sorted(counts, key=lambda n: (n not in heavy, n in moves, -counts[n]))
    shown = [f"{n} x{counts[n]}".removesuffix(" x1") for n in names[:_MAX_NAMED_KINDS]]
    if rest := sum(counts[n] for n in names[_MAX_NAMED_KINDS:]):
        shown.append(f"{rest} more")
    return ", ".join(shown)


def check_block_size(block_size: int | None) -> None:
    """Check the largest number of operations in a recomputed segment.

    Raises:
        TypeError: `block_size` is neither an integer nor None.
        ValueError: `block_size` is less than 1.
    """
    if block_size is None:
        return
    if not isinstance(block_size, int):
        raise TypeError(
            f"block_size must be a whole number of operations, got {block_size!r}; "
            "None allows any number."
        )
    if block_size < 1:
        raise ValueError(
            f"block_size must be at least 1 operation, got {block_size}; None allows "
            "any number."
        )
