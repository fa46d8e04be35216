"""`Candidate`: a plan that has not been compiled yet, and the parts that it states."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

from frugax.jaxprs import MARKS, JaxprEqn, flops_of, is_heavy

from .._plan import (
    BatchChunks,
    BodyPlan,
    LateCopies,
    PlanParts,
    RowChunks,
    Segment,
)
from ..rewrite import RematGraph, choose_gate, rewrite_loops
from ._chain_dp import DraftPlan, SegmentChoice, SegmentUsage, evaluate_segments
from ._loop_choices import LoopChoices
from ._segment_costs import SegmentCosts, costs_of, plain_peak

# Kinds of operations that a segment's summary names; the rest are counted.
_MAX_NAMED_KINDS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The program to choose loops and segments for: the loss, rewritten, or a chunk.

    Attributes:
        graph: the loss, or one chunk of it.
        batch: the chunks of the batch that the loss runs in; None if it runs whole.
        held_bytes: bytes that are held whatever is recomputed.
        added_flops: flops of adding the gradients of one chunk to those of others.
        is_chunk: whether `graph` is one chunk, and not the whole loss.
        is_opened: whether the loss's own `jax.checkpoint` regions are opened.
        copies: blocks that are computed again before the loss reads them late.
        copied_flops: flops of these.
        rows: the chunks of parts that treat rows one by one; None if they run whole.
    """

    graph: RematGraph
    batch: BatchChunks | None = None
    held_bytes: int = 0
    added_flops: int = 0
    is_chunk: bool = False
    is_opened: bool = False
    copies: LateCopies | None = None
    copied_flops: int = 0
    rows: RowChunks | None = None

    @functools.cached_property
    def plain_peak(self) -> int:
        """Bytes held during the backward pass, by the model, if all is kept."""
        return plain_peak(self.graph)

    def keep_all(
        self,
        loops: LoopChoices | None = None,
        change: int = 0,
        *,
        is_uniform: bool | None = None,
    ) -> "Candidate":
        """The plan that keeps everything outside of its loops.

        Args:
            loops: how its loops recompute; None if they do not.
            change: the bytes that they need beyond the loops as they are.
            is_uniform: as of `Candidate`.
        """
        draft = DraftPlan((), max(self.plain_peak + change, 0), 0)
        return Candidate(self, loops or LoopChoices(), draft, is_uniform)


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that has not been compiled yet.

    Attributes:
        source: the loss, or one chunk of it.
        loops: how scans and conds recompute.
        draft: the segments that are recomputed; without any, all is kept.
        is_uniform: of a plan that a user could write by hand, whether one policy holds
            for each block or each iteration; None of others.
    """

    source: Source
    loops: LoopChoices
    draft: DraftPlan
    is_uniform: bool | None = None

    @property
    def body_plans(self) -> tuple[BodyPlan, ...]:
        """How scans and conds recompute."""
        return self.loops.body_plans

    @functools.cached_property
    def body(self) -> RematGraph:
        """The loss, or the chunk, with its scans and conds rewritten so."""
        scratch = dict(self.loops.scratch_bytes)
        return rewrite_loops(self.source.graph, self.body_plans, scratch)

    @property
    def choices(self) -> tuple[SegmentChoice, ...]:
        """The segments in order, covering all operations of `body`."""
        return self.draft.choices or (SegmentChoice(0, len(self.body.eqns), 0),)

    @functools.cached_property
    def costs(self) -> SegmentCosts:
        """The costs of these segments and those nested in them."""
        return costs_of(self.body, {(c.start, c.stop) for c in _walk(self.choices)})

    @property
    def family(self) -> Hashable:
        """Its levers: the model errs alike about the bytes of plans that share them."""
        source = self.source
        own = (len(self.draft.choices) > 1, bool(self.body_plans))
        return (
            own if self.is_uniform is None else "by hand",
            source.batch is not None,
            source.rows is not None,
            source.copies is not None,
            source.is_opened,
        )

    @property
    def peak_bytes(self) -> int:
        """Most bytes held during the backward pass, by the model."""
        return self.draft.peak_bytes + self.source.held_bytes

    @property
    def flops(self) -> int:
        """Additional flops, by the model."""
        source = self.source
        flops = self.loops.flops + self.draft.flops + source.copied_flops
        if source.batch is None:
            return flops
        count = source.batch.count
        return count * source.added_flops + flops * (count if source.is_chunk else 1)


def _walk(choices: Sequence[SegmentChoice]) -> Iterator[SegmentChoice]:
    for choice in choices:
        yield choice
        yield from _walk(choice.nested)


def build_parts(candidate: Candidate, platform: str) -> PlanParts:
    """A candidate as the parts of a plan, with gates that suit this platform."""
    source, segments = candidate.source, _build_segments(candidate, platform)
    inside = {"segments": segments, "body_plans": candidate.body_plans}
    if source.batch is None or not source.is_chunk:
        return PlanParts(
            **inside,
            batch=source.batch,
            is_opened=source.is_opened,
            copies=source.copies,
            rows=source.rows,
        )
    if all(s.gate is None for s in segments):
        inside["segments"] = ()
    batch = dataclasses.replace(source.batch, **inside)
    return PlanParts(batch=batch, is_opened=source.is_opened)


def _build_segments(candidate: Candidate, platform: str) -> tuple[Segment, ...]:
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

    choices = candidate.choices
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
