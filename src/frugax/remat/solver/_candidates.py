"""All plans on paper, from the plain program down: drafts for each choice inside."""

import dataclasses

from frugax.jaxprs import flops_of

from .._explain import describe
from .._plan import BodyPlan, Segment
from ..rewrite import RematGraph, choose_gate, rewrite_loops
from ._chain_dp import (
    DraftPlan,
    SegmentChoice,
    SegmentUsage,
    draft_plans,
    evaluate_segments,
)
from ._loop_choices import LoopChoices, list_loop_choices
from ._segment_costs import SegmentCosts

# Plans that do more than this many forward passes again are left out.
_MOST_AGAIN = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """One plan on paper.

    Attributes:
        level: what is done again inside scans and conds.
        body: the loss, with its scans and conds so.
        costs: of its segments.
        draft: which of them are done again.
    """

    level: LoopChoices
    body: RematGraph
    costs: SegmentCosts
    draft: DraftPlan

    @property
    def insides(self) -> tuple[BodyPlan, ...]:
        """What is done again inside scans and conds."""
        return self.level.insides

    @property
    def flops(self) -> int:
        """Done a second time, by the model."""
        return self.level.flops + self.draft.flops


def list_candidates(body: RematGraph, block_size: int | None = None) -> list[Candidate]:
    """Plans of ever smaller peak, the plain one first, by the model.

    A plan is left out if another needs neither more bytes nor more flops. The list
    does not depend on any budget.
    """
    found: list[Candidate] = []
    for level in list_loop_choices(body):
        here = rewrite_loops(body, level.insides, dict(level.scratch))
        costs, made = draft_plans(here, block_size)
        found += [Candidate(level, here, costs, d) for d in made]
    plain, *rest = found
    least = _MOST_AGAIN * sum(map(flops_of, body.eqns))
    kept: list[Candidate] = []
    for rung in sorted(rest, key=lambda r: (r.draft.peak_bytes, r.flops)):
        if rung.flops < least and rung.draft.peak_bytes < plain.draft.peak_bytes:
            least = rung.flops
            kept.append(rung)
    return [plain, *reversed(kept)]


def build_segments(rung: Candidate, platform: str) -> tuple[Segment, ...]:
    """A draft's segments, each with the gate for what is in it."""

    def segment(step: SegmentChoice, weight: SegmentUsage) -> Segment:
        cost = rung.costs.of[step.start, step.stop, step.mode]
        eqns = rung.body.eqns[step.start : step.stop]
        return Segment(
            start=step.start,
            stop=step.stop,
            gate=choose_gate(eqns, platform) if step.mode else None,
            saved_bytes=cost.stored_bytes,
            recomputed_flops=cost.flops,
            kept=cost.kept,
            inside=tuple(map(segment, step.inside, weight.inside)),
            what=describe(eqns),
            peak_bytes=weight.peak_bytes,
        )

    steps = rung.draft.steps
    return tuple(map(segment, steps, evaluate_segments(rung.costs, steps)))


def check_block_size(block_size: int | None) -> None:
    """Refuse a block that holds nothing.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is less than 1.
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
