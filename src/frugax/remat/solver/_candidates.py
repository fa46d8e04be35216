"""List candidate plans worth compiling, the plain one first, by falling peak memory.

The planned program is the loss, the loss with late layers copied, one chunk, or the
loss with loops over chunks of rows; for each of these, loops and segments are chosen.
"""

import dataclasses
import enum
from collections.abc import Sequence

from frugax.jaxprs import flops_of, shape_of

from .._plan import LateCopies, RowChunks
from ..rewrite import (
    MixesBatchError,
    RematGraph,
    chunk_batch,
    chunk_rows,
    copy_late,
    reads_late_from,
    rewrite_loops,
    split_batch,
)
from ._batch_choices import (
    SMALL_SHARE,
    chunk_counts,
    find_batch,
    find_row_count,
    spread_counts,
)
from ._candidate import Candidate, Source
from ._chain_dp import DraftPlan, draft_plans
from ._loop_choices import (
    LoopChoices,
    list_choices_in_host_memory,
    list_loop_choices,
)
from ._named_policies import list_named_plans
from ._repeated_blocks import Edges, find_blocks
from ._segment_costs import plain_peak

# Plans that recompute more than this many forward passes are left out, in segments and
# with loops. Each level of groups within groups of a scan's iterations is one.
_MAX_FORWARD_PASSES = 2.0
_MAX_LOOP_PASSES = 4.0
# Choices for the loops of a loss save at least this share of its peak one by one: finer
# steps than those between limits would be modelled for nothing.
_STEP = 0.01
# Where loops go over chunks of rows, there are many of them, and little work is left
# for the segments outside: this share, and as many cuts, are fine enough.
_ROW_STEP, _ROW_CUTS = 0.05, 48
# Chunks of the batch that cost at most this share of the forward pass are tried before
# anything is modelled.
_CHEAP_CHUNKS = 0.03


class Stage(enum.Enum):
    """The lists of candidates, in the order in which they are searched."""

    WHOLE = enum.auto()  # recomputed segments and loops
    COPIED = enum.auto()  # also layers computed again where the loss reads them late
    CHUNKED = enum.auto()  # only chunks of the batch that cost next to nothing
    IN_ROWS = enum.auto()  # chunks of parts that treat rows one by one
    ALL = enum.auto()  # also chunks of the batch, in which segments and loops recompute
    IN_HOST = enum.auto()  # only values of scans in the host's memory


def list_candidates(
    body: RematGraph,
    block_size: int | None = None,
    *,
    stage: Stage = Stage.WHOLE,
    opened: RematGraph | None = None,
    platform: str = "cpu",
) -> list[Candidate]:
    """Plans of ever smaller modelled peak, the plain one first.

    Only Pareto-optimal plans are listed: no other plan needs neither more bytes nor
    more flops. The list does not depend on any budget.

    Args:
        body: the loss.
        block_size: the most operations in a recomputed segment; None for any number.
        stage: the kinds of plans.
        opened: the loss with its own `jax.checkpoint` regions opened, if it has any.
        platform: of the devices that are planned for.
    """
    whole = Source(body)
    regions = [] if opened is None else [Source(opened, is_opened=True)]
    plain, found = whole.keep_all(), list[Candidate]()
    drafts = lambda sources: [c for s in sources for c in _list_drafts(s, block_size)]
    if stage is Stage.CHUNKED:
        limit = _CHEAP_CHUNKS * sum(map(flops_of, body.eqns))
        if _runs_in_chunks(body):
            found = [c for c in _divide_batch(whole) if c.flops <= limit]
    elif stage is Stage.IN_ROWS:
        # The chunks need no regions of the user's own.
        found = drafts(_in_row_chunks(*(regions or [whole])))
    elif stage is Stage.IN_HOST:
        found = [whole.keep_all(*c) for c in list_choices_in_host_memory(body)]
    else:
        found = drafts([whole])[1:]
        for source in (whole, *regions):
            if source is not whole:
                # The plain opened loss, too: the user's regions may cost too much.
                found += drafts([source])
            if stage is Stage.ALL:
                if _runs_in_chunks(source.graph):
                    found += _divide_batch(source)
                found += drafts(_in_smallest_chunks(source))
            if source is whole and stage is not Stage.WHOLE:
                found += drafts(_copy_layers(body, platform))
        for source in regions:
            # The model believes that compilers keep to the user's regions. Where one
            # does not, the plain loss holds as much as the opened one.
            more = max(plain_peak(source.graph) - plain.peak_bytes, 0)
            plain = dataclasses.replace(whole, held_bytes=more).keep_all()
    return _keep_optimal(body, plain, found)


def list_named(
    body: RematGraph,
    *,
    stage: Stage = Stage.WHOLE,
    opened: RematGraph | None = None,
    platform: str = "cpu",
) -> list[Candidate]:
    """Blocks and iterations under named policies, see `_named_policies.py`.

    Where the loss runs in chunks, they are those of a chunk.

    Args:
        body: as of `list_candidates`, and so are the next ones.
        stage: the kinds of plans; there are none of those that only divide the loss.
        opened: the loss with its own regions opened.
        platform: of the devices.
    """
    if stage not in (Stage.WHOLE, Stage.COPIED, Stage.ALL):
        return []
    sources = [Source(body)]
    if opened is not None:
        sources.append(Source(opened, is_opened=True))
    found = sources
    if stage is not Stage.WHOLE:
        # Without copies, they were tried before.
        found = _copy_layers(body, platform) or sources
    if stage is Stage.ALL:
        found = [*found, *(c for s in sources for c in _in_smallest_chunks(s))]
    return [c for source in found for c in list_named_plans(source)]


def reads_late(body: RematGraph) -> bool:
    """Whether operations read results of much earlier layers, from their inside."""
    return bool(_late_runs(body))


def _late_runs(body: RematGraph) -> tuple[Edges, ...]:
    return tuple(r for r in find_blocks(body) if reads_late_from(body, r))


def _list_drafts(source: Source, block_size: int | None) -> list[Candidate]:
    """Segments and loops that recompute, the plain plan first."""
    body = source.graph

    def make() -> list[tuple[LoopChoices, DraftPlan]]:
        found: list[tuple[LoopChoices, DraftPlan]] = []
        step = _STEP if source.rows is None else _ROW_STEP
        for loops in list_loop_choices(body, step * source.plain_peak):
            rewritten = rewrite_loops(body, loops.body_plans, dict(loops.scratch_bytes))
            if source.rows is not None:
                rewritten = dataclasses.replace(rewritten, max_cuts=_ROW_CUTS)
            found += [(loops, d) for d in draft_plans(rewritten, block_size)[1]]
        return found

    # Several stages of the search list it.
    made = body.remember(("drafts", block_size), make)
    return [Candidate(source, loops, draft) for loops, draft in made]


def _copy_layers(body: RematGraph, platform: str) -> list[Source]:
    """The loss that computes layers again where it reads them late, if it does."""

    def make() -> list[Source]:
        runs = _late_runs(body)
        if not runs:
            return []
        copies = LateCopies(runs, "select" if platform == "cpu" else "barrier")
        copied = copy_late(body, copies)
        more = sum(map(flops_of, copied.eqns)) - sum(map(flops_of, body.eqns))
        # The copies have a backward pass of their own, of twice their flops.
        return [Source(copied, copies=copies, copied_flops=3 * more)]

    return body.remember(("copied", platform), make)


def _runs_in_chunks(body: RematGraph) -> bool:
    """Whether nearly all of the loss can run in chunks of its batch."""
    found = find_batch(body)
    return found is not None and found.whole_share < SMALL_SHARE


def _in_row_chunks(source: Source) -> list[Source]:
    """The loss with parts in chunks of rows.

    There are none if it can run in chunks of its batch as a whole, or if nothing in it
    treats rows one by one.
    """
    body = source.graph

    def make() -> list[Source]:
        length = None if _runs_in_chunks(body) else find_row_count(body)
        counts = [] if length is None else spread_counts(length)
        rows = [RowChunks(count, length or 0) for count in counts]
        return [
            dataclasses.replace(source, graph=chunk_rows(body, r), rows=r) for r in rows
        ]

    return body.remember("rows", make)


def _divide_batch(source: Source) -> list[Candidate]:
    """The loss in fewer or more chunks, in which nothing is recomputed."""
    body = source.graph

    def make() -> list[Candidate]:
        found = find_batch(body)
        if found is None:
            return []
        counts = chunk_counts(found.split.batch // found.chunks.devices)
        most, smallest = found.chunks, found.split
        while counts:
            most = dataclasses.replace(found.chunks, count=counts[-1])
            try:
                smallest = split_batch(body, most)
                break
            except MixesBatchError:  # a sharding inside of it needs more rows
                counts.pop()
        # Gradients of single rows are not added up, but a chunk still takes its time.
        added = max(sum(shape_of(v).size for v in smallest.added), 1)
        # The bytes that a chunk holds are proportional to its length.
        peak = plain_peak(smallest.chunk) * most.count
        return [
            Candidate(
                dataclasses.replace(
                    source,
                    graph=smallest.chunk,
                    batch=dataclasses.replace(most, count=count),
                    held_bytes=smallest.held_bytes,
                    added_flops=added,
                    is_chunk=True,
                ),
                LoopChoices(),
                DraftPlan((), peak // count, 0),
            )
            for count in counts
        ]

    return body.remember("divided", make)


def _in_smallest_chunks(source: Source) -> list[Source]:
    """The smallest chunk of the loss, or the loss whose end runs in chunks."""
    body = source.graph

    def make() -> list[Source]:
        divided = _divide_batch(source)
        if not divided or _runs_in_chunks(body):
            return [c.source for c in divided[-1:]]
        # Only the end of the loss runs in chunks, such as the logits and the loss of a
        # language model. A few chunks of it hold little enough beside the rest.
        limit = plain_peak(body) // 16
        chosen = next((c for c in divided if c.draft.peak_bytes < limit), divided[-1])
        batch = chosen.source.batch
        assert batch is not None  # by `_divide_batch`
        rest = chunk_batch(body, batch)
        loop = [e for e in rest.eqns if e.primitive.name == "custom_vjp_call"][-1]
        scratch = {loop.outvars[0]: chosen.peak_bytes}
        rest = dataclasses.replace(rest, scratch_bytes=scratch)
        return [dataclasses.replace(source, graph=rest, batch=batch)]

    return body.remember("smallest chunks", make)


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
