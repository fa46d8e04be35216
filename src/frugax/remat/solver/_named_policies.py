"""Plans that a user could write by hand: blocks and iterations under named policies.

The model takes many plans for equal that need different bytes once XLA has compiled
them. So the placements that people name are candidates of their own, whatever the model
thinks of them: one `jax.checkpoint` around each block, or around every second block,
with one of the policies of `jax.checkpoint`, or with two of them, one for the first
blocks and one for the rest.
"""

import itertools
from collections.abc import Iterator, Sequence

from frugax.jaxprs import is_heavy

from ..rewrite import RematGraph
from ._candidate import Candidate, Source
from ._chain_dp import SegmentChoice, evaluate_choices
from ._loop_choices import LoopChoices, list_named_loop_choices
from ._repeated_blocks import find_blocks
from ._segment_costs import costs_of

# Blocks in one checkpoint.
_BLOCKS_TOGETHER = (1, 2)
# Places at which a sequence of blocks passes from one policy to the next.
_MAX_SPLITS = 6


def list_named_plans(source: Source) -> Iterator[Candidate]:
    """Blocks of straight-line code, then iterations of scans, by named policies."""
    body = source.graph
    if not body.eqns:
        return
    for together in _BLOCKS_TOGETHER:
        blocks = _blocks(body, together)
        if not blocks:
            continue
        end = len(body.eqns)
        spans = {*blocks, (0, blocks[0][0]), *((b, end) for _, b in blocks)}
        spans |= {(a, d) for (_, a), (d, _) in itertools.pairwise(blocks)}
        costs = costs_of(body, [(a, b) for a, b in spans if a < b])
        seen: set[tuple[object, ...]] = set()
        for modes in _list_modes(len(blocks), costs.modes):
            choices = _place(blocks, modes, end)
            found = [costs.of[c.start, c.stop, c.mode] for c in choices]
            # Two modes may treat these blocks alike.
            key = tuple(
                (c.mode > 0, cost.kept) for c, cost in zip(choices, found, strict=True)
            )
            if key in seen or not all(cost.possible for cost in found):
                continue
            seen.add(key)
            draft = evaluate_choices(costs, choices)
            is_uniform = together == len({*modes}) == 1
            yield Candidate(source, LoopChoices(), draft, is_uniform)
    for loops, change in list_named_loop_choices(body):
        is_uniform = all(len(p.bodies) == 1 for p in loops.body_plans)
        yield source.keep_all(loops, change, is_uniform=is_uniform)


def _blocks(body: RematGraph, together: int) -> list[tuple[int, int]]:
    """Consecutive blocks of the loss, without parts that hold no product."""
    edges = {0, len(body.eqns)}
    for run in find_blocks(body):
        edges |= {*run[::together], run[-1]}
    pairs = itertools.pairwise(sorted(edges))
    return [(a, b) for a, b in pairs if any(map(is_heavy, body.eqns[a:b]))]


def _list_modes(count: int, modes: int) -> Iterator[tuple[int, ...]]:
    """The mode of each block: the same, or one for the first and one for the rest."""
    splits = sorted({round(count * n / _MAX_SPLITS) for n in range(1, _MAX_SPLITS)})
    for more in range(1, modes):
        yield (more,) * count
        for less, split in itertools.product(range(more), splits):
            if 0 < split < count:
                yield (more,) * split + (less,) * (count - split)


def _place(
    blocks: Sequence[tuple[int, int]], modes: Sequence[int], end: int
) -> tuple[SegmentChoice, ...]:
    """Segments that cover all operations; those between the blocks are kept."""
    choices: list[SegmentChoice] = []
    at = 0
    for (start, stop), mode in zip(blocks, modes, strict=True):
        if not mode:
            continue
        if at < start:
            choices.append(SegmentChoice(at, start, 0))
        choices.append(SegmentChoice(start, stop, mode))
        at = stop
    if at < end:
        choices.append(SegmentChoice(at, end, 0))
    return tuple(choices)
