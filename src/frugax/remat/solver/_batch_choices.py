"""Find the batch axis of a loss's inputs, and the numbers of chunks to try."""

import dataclasses
import math
from collections.abc import Iterator

from frugax.jaxprs import bytes_of, flops_of, shape_of

from .._plan import BatchChunks, RowChunks
from ..rewrite import (
    BatchSplit,
    MixesBatchError,
    RematGraph,
    check_split,
    split_batch,
    split_rows,
)
from ._divisors import divisors

# Inputs and axes that are tried as the batch. Each try traces the loss twice.
_MAX_TRIES = 6
# Up to this share of the flops before the chunks, only the chunks are worth a plan.
SMALL_SHARE = 0.1
# Above this share, chunks are not worth a plan.
_LARGE_SHARE = 0.75
# What follows the chunks is computed more than once, so it must be this small a share.
_MAX_AFTER = 0.05
# So must be what each chunk computes for all rows, before it takes its own: products of
# a recurrent net's inputs, where the batch is found in its first state.
_MAX_REPEATED = 0.05
# Below this share of the bytes, segments that treat rows one by one are not worth it.
_LEAST_IN_ROWS = 0.3
_CLEARLY_MORE = 1.5
# Numbers of chunks of rows that are tried.
_ROW_CHUNKS = (16, 64)
# More numbers of chunks than this give no finer steps between limits.
_MAX_COUNTS = 12
# A step of a loop costs a device microseconds, and XLA minutes to compile where there
# are millions.
_MOST_CHUNKS = 8192


@dataclasses.dataclass(frozen=True, slots=True)
class FoundBatch:
    """The axis along which most of a loss's work can be split.

    Attributes:
        chunks: that axis, with as few chunks as possible.
        split: the loss in these chunks.
        whole_share: the share of the loss's flops that runs whole, before the chunks.
    """

    chunks: BatchChunks
    split: BatchSplit
    whole_share: float


def find_batch(body: RematGraph) -> FoundBatch | None:
    """The axis along which most of the loss's work can be split, or None."""
    return body.remember("batch", lambda: _find_batch(body))


def _find_batch(body: RematGraph) -> FoundBatch | None:
    best: FoundBatch | None = None
    total = sum(map(flops_of, body.eqns))
    for operand, axis, length in _possible_batches(body):
        divided = body.divided.get(body.graph.inputs[operand])
        devices = divided[axis] if divided else 1
        if length < 2 * devices:
            continue
        count = _smallest_factor(length // devices)
        chunks = BatchChunks(count, operand, axis, devices)
        try:
            split = split_batch(body, chunks)
            if sum(map(flops_of, split.after)) > _MAX_AFTER * total:
                continue
            if split.repeated_flops > _MAX_REPEATED * total:
                continue
            share = sum(map(flops_of, split.before)) / max(total, 1)
            if share >= (best.whole_share if best else _LARGE_SHARE):
                continue
            check_split(split)  # at last, since it traces the loss once more
        except MixesBatchError:
            continue
        best = FoundBatch(chunks, split, share)
        if share < SMALL_SHARE:
            break
    return best


def find_row_count(body: RematGraph) -> int | None:
    """The number of rows that most of the loss treats one by one, or None."""
    best, most = None, _LEAST_IN_ROWS
    total = max(sum(bytes_of(v) for e in body.graph.eqns for v in e.outvars), 1)
    for length in _possible_row_counts(body):
        try:
            split = split_rows(body, RowChunks(_smallest_factor(length), length))
        except MixesBatchError:
            continue
        # What leaves a segment is held whole, such as the sums of a product over the
        # numbers of a row, which can be split as well.
        inside = sum(
            bytes_of(v)
            for s in split.segments
            for e in s.eqns
            for v in e.outvars
            if v not in s.rows and v not in s.sums
        )
        # The likeliest come first: the numbers of a row are treated alike as well.
        if inside / total > (_CLEARLY_MORE * most if best else most):
            best, most = length, inside / total
        if _CLEARLY_MORE * most > 1:
            break
    return best


def spread_counts(length: int) -> list[int]:
    """A few numbers of chunks of this many rows, from few chunks to many."""
    counts = [c for c in chunk_counts(length) if c > 1]
    near = lambda wanted: min(counts, key=lambda c: abs(math.log(c / wanted)))
    return sorted({near(wanted) for wanted in _ROW_CHUNKS})


def chunk_counts(batch: int) -> list[int]:
    """Numbers of chunks to try: divisors of the batch, about a factor of 2 apart."""
    ratio = max(2.0, batch ** (1 / _MAX_COUNTS))
    found: list[int] = []
    for c in divisors(batch):
        if c > _MOST_CHUNKS:
            break
        if not found or c >= found[-1] * ratio or c == batch:
            found.append(c)
    return found


def _possible_batches(body: RematGraph) -> Iterator[tuple[int, int, int]]:
    """Inputs, axes and lengths that may be a batch, the likeliest first."""
    inputs, wrt = body.graph.inputs, set(body.wrt)
    # The batch is data, so differentiated inputs come last. (They are right for an
    # ensemble, whose members are rows of its weights.) Larger inputs are likelier
    # than labels.
    order = sorted(
        range(len(inputs)), key=lambda i: (inputs[i] in wrt, -bytes_of(inputs[i]))
    )
    shapes = [shape_of(inputs[i]).shape for i in order]
    seen: set[tuple[int, int, bool]] = set()
    for axis in (0, 1):
        for i, shape in zip(order, shapes, strict=True):
            if len(shape) <= axis or shape[axis] < 2:
                continue
            # Arrays that belong together, such as data and labels, need one try.
            kind = axis, shape[axis], inputs[i] in wrt
            if kind in seen or len(seen) >= _MAX_TRIES:
                continue
            seen.add(kind)
            yield i, axis, shape[axis]


def _possible_row_counts(body: RematGraph) -> list[int]:
    """Lengths that may be a number of rows, the likeliest first.

    They are those of inputs, and of the arrays inside that most of the bytes belong to:
    a loss may take its rows from a larger array, or draw them.
    """
    wrt, inputs = set(body.wrt), body.graph.inputs
    given = [
        (axis, n) for i, axis, n in _possible_batches(body) if inputs[i] not in wrt
    ]
    made: dict[int, int] = {}
    for v in (v for e in body.graph.eqns for v in e.outvars):
        shape = shape_of(v).shape
        if shape and shape[0] > 1:
            made[shape[0]] = made.get(shape[0], 0) + bytes_of(v)
    least = _LEAST_IN_ROWS * sum(made.values())
    inside = [n for n in sorted(made, key=lambda n: -made[n]) if made[n] > least]
    first, second = ([n for a, n in given if a == axis] for axis in (0, 1))
    return list(dict.fromkeys([*first, *inside, *second]))


def _smallest_factor(n: int) -> int:
    for c in range(2, math.isqrt(n) + 1):
        if n % c == 0:
            return c
    return n
