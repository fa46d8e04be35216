"""Recognise the layers of a loss: runs of operations that repeat with a period."""

import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from frugax.jaxprs import bytes_of, flops_of

from ..rewrite import RematGraph

# The edges of consecutive blocks of operations: the n-th block is `edges[n:n + 2]`.
Edges = tuple[int, ...]

# Runs that do less than this share of the work are not worth a decision.
_MIN_SHARE = 0.05
# Without repeated layers, this many segments of about equal work stand in for them.
_FEW, _MANY = 4, 12


def find_blocks(body: RematGraph) -> tuple[Edges, ...]:
    """The runs of blocks of a loss, in order.

    A run repeats the same operations on the same shapes, such as the layers of a net. A
    loss that takes a gradient inside has a run for the forward pass and another one for
    the backward pass. If nothing repeats, the run is one of segments of about equal
    work.
    """

    def make() -> tuple[Edges, ...]:
        work = np.array([flops_of(e) for e in body.eqns], dtype=float)
        kinds: dict[object, int] = {}
        shapes = lambda atoms: tuple(str(v.aval) for v in atoms)
        keys = [
            (e.primitive.name, shapes(e.invars), shapes(e.outvars)) for e in body.eqns
        ]
        tokens = np.array([kinds.setdefault(k, len(kinds)) for k in keys], dtype=int)
        least = _MIN_SHARE * work.sum()
        runs = sorted(_find_runs(body, tokens, work, 0, len(tokens), least))
        return tuple(runs) or _divide_evenly(body, work)

    return body.remember("blocks", make)


def _find_runs(
    body: RematGraph,
    tokens: Int[np.ndarray, " operations"],
    work: np.ndarray,
    low: int,
    high: int,
    least: float,
) -> Iterator[Edges]:
    """The run that does the most work between two places, then those beside it."""
    total = np.concatenate([[0.0], np.cumsum(work)])
    best, found = least, None
    for period in range(1, (high - low) // 2 + 1):
        same = tokens[low : high - period] == tokens[low + period : high]
        ends = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
        for start, stop in zip(ends[::2], ends[1::2], strict=True):
            if stop - start < period:
                continue
            first, last = low + int(start), low + int(stop) + period
            # Only a longer run beats a shorter period: two layers are not one block.
            if total[last] - total[first] > 1.001 * best:
                best, found = total[last] - total[first], (first, last, period)
    if found is None:
        return
    first, last, period = found
    yield _place_edges(body, first, last, period)
    yield from _find_runs(body, tokens, work, low, first, least)
    yield from _find_runs(body, tokens, work, last, high, least)


def _place_edges(body: RematGraph, first: int, last: int, period: int) -> Edges:
    """The edges of a run where the fewest bytes cross from block to block."""
    crossing = _near_crossing(body, period)
    options = [tuple(range(first + r, last + 1, period)) for r in range(period)]
    return min(options, key=lambda edges: sum(crossing[e] for e in edges) / len(edges))


def _near_crossing(body: RematGraph, span: int) -> list[int]:
    """Bytes defined before each place and read next within `span` operations.

    A gradient inside the loss reads results of each layer much later. These cross every
    edge alike and do not show where a layer ends.
    """
    change = [0] * (len(body.eqns) + 2)
    last = dict(body.defined_at)
    for i, e in enumerate(body.eqns):
        for v in {*body.intermediates(e.invars)}:
            change[max(last[v], i - span) + 1] += bytes_of(v)
            change[i + 1] -= bytes_of(v)
            last[v] = i
    return list(itertools.accumulate(change[:-1]))


def _divide_evenly(body: RematGraph, work: np.ndarray) -> tuple[Edges, ...]:
    """Segments of about equal work, whose edges are the narrowest cuts nearby."""
    cuts = body.cuts
    count = min(max(round(len(cuts) ** 0.5), _FEW), _MANY)
    if len(cuts) <= count or not work.sum():
        return ()
    crossing = _near_crossing(body, max(len(body.eqns) // count, 1))
    done = np.concatenate([[0.0], np.cumsum(work)]) / work.sum()
    edges = [0]
    for n in range(1, count):
        near = [c for c in cuts if abs(done[c] - n / count) < 0.5 / count]
        near = [c for c in near if c > edges[-1]]
        if near:
            edges.append(min(near, key=lambda c: crossing[c]))
    return ((*edges, len(body.eqns)),)
