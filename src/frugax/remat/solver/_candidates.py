"""List the plans that are worth compiling, from the plain program down in peak."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from frugax.jaxprs import JaxprEqn, flops_of, is_heavy

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

# Plans that recompute more than this many forward passes are left out.
_MAX_FORWARD_PASSES = 2.0
# Kinds of operations that a segment's summary names; the rest are counted.
_MAX_NAMED_KINDS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that has not been compiled yet.

    Attributes:
        loops: how scans and conds recompute.
        body: the loss with its scans and conds rewritten so.
        costs: the costs of its segments.
        draft: the segments that are recomputed.
    """

    loops: LoopChoices
    body: RematGraph
    costs: SegmentCosts
    draft: DraftPlan

    @property
    def body_plans(self) -> tuple[BodyPlan, ...]:
        """How scans and conds recompute."""
        return self.loops.body_plans

    @property
    def flops(self) -> int:
        """Recomputed flops, by the model."""
        return self.loops.flops + self.draft.flops


def list_candidates(body: RematGraph, block_size: int | None = None) -> list[Candidate]:
    """Plans of ever smaller modelled peak, the plain one first.

    Only Pareto-optimal plans are listed: no other plan needs neither more bytes nor
    more flops. The list does not depend on any budget.
    """
    found: list[Candidate] = []
    for loops in list_loop_choices(body):
        rewritten = rewrite_loops(body, loops.body_plans, dict(loops.scratch_bytes))
        costs, drafts = draft_plans(rewritten, block_size)
        found += [Candidate(loops, rewritten, costs, d) for d in drafts]
    plain, *rest = found
    fewest_flops = _MAX_FORWARD_PASSES * sum(map(flops_of, body.eqns))
    # By rising peak, a plan is optimal if it costs less than all plans below it.
    optimal: list[Candidate] = []
    for c in sorted(rest, key=lambda c: (c.draft.peak_bytes, c.flops)):
        if c.flops < fewest_flops and c.draft.peak_bytes < plain.draft.peak_bytes:
            fewest_flops = c.flops
            optimal.append(c)
    return [plain, *reversed(optimal)]


def build_segments(candidate: Candidate, platform: str) -> tuple[Segment, ...]:
    """A candidate's segments, each with the gate that suits this platform."""
    costs = candidate.costs

    def segment(choice: SegmentChoice, usage: SegmentUsage) -> Segment:
        cost = costs.of[choice.start, choice.stop, choice.mode]
        eqns = candidate.body.eqns[choice.start : choice.stop]
        return Segment(
            start=choice.start,
            stop=choice.stop,
            gate=choose_gate(eqns, platform) if choice.mode else None,
            saved_bytes=cost.stored_bytes,
            recomputed_flops=cost.flops,
            kept=cost.kept,
            nested=tuple(map(segment, choice.nested, usage.nested)),
            summary=describe_operations(eqns),
            peak_bytes=usage.peak_bytes,
        )

    choices = candidate.draft.choices
    return tuple(map(segment, choices, evaluate_segments(costs, choices)))


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
