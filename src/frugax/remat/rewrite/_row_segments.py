"""Run the parts of a loss that treat rows one by one in chunks, if it mixes them later.

Batch statistics, contrastive losses, sorted times: such a loss cannot run on one chunk
of its batch after another. Most of its memory still lies in segments that treat each
row alone. Here each of these becomes a `lax.scan` over chunks of its rows, and all else
runs on whole arrays. A plan that recomputes the iterations of these scans then holds
the results of whole operations, the rows that pass between segments, and one chunk. For
contrastive losses this is GradCache (Gao et al. 2021, "Scaling deep contrastive
learning batch size under memory limited setup").

Operations are sorted into levels: those of a segment read the rows of their own level,
and whole arrays of it and of lower ones.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frugax.jaxprs import (
    Graph,
    JaxprEqn,
    Var,
    bytes_of,
    is_heavy,
    shape_of,
    trace,
    variables,
)

from .._plan import RowChunks
from ._active import is_inexact
from ._batch_axis import BatchPart, check_backward
from ._batch_rules import Along, MixesBatchError, Value, join_parts
from ._graph import RematGraph, accumulator, accumulator_type, replace_operations

# A segment that makes less than this share of all bytes runs whole.
_WORTHWHILE = 0.02
# In place of the number of a segment: whatever reads all rows at once.
_WHOLE = -1


@dataclasses.dataclass(frozen=True, eq=False)
class RowSegment:
    """Operations that treat rows one by one, and their operands.

    Attributes:
        eqns: the operations.
        read_whole: for each of them, the operands with rows that it reads whole.
        sliced: values of which a chunk reads its own rows.
        rows: its results that are read outside and have a row for each row.
        sums: its results that are sums over all rows.
    """

    eqns: list[JaxprEqn] = dataclasses.field(default_factory=list)
    read_whole: list[frozenset[Var]] = dataclasses.field(default_factory=list)
    sliced: dict[Var, Along] = dataclasses.field(default_factory=dict)
    rows: dict[Var, Along] = dataclasses.field(default_factory=dict)
    sums: list[Var] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, eq=False)
class RowSplit:
    """A loss as levels of whole operations, each followed by a segment.

    Attributes:
        whole: the operations of each level that run whole.
        segments: the segment of each level, which may be empty.
    """

    whole: list[list[JaxprEqn]]
    segments: list[RowSegment]


def split_rows(body: RematGraph, chunks: RowChunks) -> RowSplit:
    """Sort the operations of a loss into segments of rows and whole operations.

    Raises:
        MixesBatchError: no operation treats rows of this number one by one.
    """
    graph = body.graph
    if chunks.length % chunks.count:
        raise MixesBatchError(f"{chunks.length} rows are not {chunks.count} chunks")
    names = [*graph.inputs, *(v for e in graph.eqns for v in e.outvars)]
    sorter = _Sorter(body, chunks)

    def sort(index: Any, wholes: Sequence[Any]) -> None:
        sorter.run(index, dict(zip(names, wholes, strict=True)))

    index = jax.ShapeDtypeStruct((), jnp.int32)
    trace(sort, (index, list(map(shape_of, names))))
    return sorter.finish()


def chunk_rows(body: RematGraph, chunks: RowChunks) -> RematGraph:
    """The same loss, whose segments of rows run in chunks.

    Raises:
        ValueError: the plan does not fit this loss.
    """
    try:
        split = split_rows(body, chunks)
    except MixesBatchError as e:
        raise ValueError(
            f"damaged plan: this loss has no segments of {chunks.length} rows that can "
            f"run in {chunks.count} chunks ({e}). Plan again with remat.plan."
        ) from e

    def run(env: dict[Var, Any]) -> None:
        for whole, segment in zip(split.whole, split.segments, strict=True):
            _run_whole(body.graph, whole, env)
            if segment.eqns:
                _run_chunks(body.graph, segment, chunks, env)

    return replace_operations(body, run)


class _Sorter:
    """Sorts operations into levels, by running each of them on a chunk of rows."""

    def __init__(self, body: RematGraph, chunks: RowChunks) -> None:
        self._body, self._chunks = body, chunks
        inputs = body.graph.inputs
        # Only data has rows: a weight of as many rows is a coincidence. The loss may
        # take its rows from an array of more rows, or draw them with a key.
        self._reached = set(inputs) - set(body.wrt)
        self._level = dict.fromkeys(inputs, 0)
        self._rows: dict[Var, Value] = {}
        self._whole: dict[int, list[JaxprEqn]] = {}
        self._segments: dict[int, RowSegment] = {}

    def run(self, index: Any, wholes: dict[Var, Any]) -> None:
        """Sort all operations; `wholes` are the whole values of all variables."""
        part = BatchPart(self._chunks.length, self._chunks.count, index)
        for e in self._body.graph.eqns:
            if not self._reached & set(variables(e.invars)):
                self._add_whole(e)
                continue
            self._reached |= set(e.outvars)
            if not any(self._try_rows(part, wholes, e, w) for w in _whole_reads(e)):
                self._add_whole(e)

    def _try_rows(
        self,
        part: BatchPart,
        wholes: dict[Var, Any],
        e: JaxprEqn,
        read_whole: frozenset[Var],
    ) -> bool:
        """Add an operation to a segment, if it treats rows one by one."""
        env: dict[Var, Value] = {}
        sliced: dict[Var, Along] = {}
        for v in variables(e.invars):
            along = self._along(v)
            if along is None or v in read_whole:
                env[v] = Value(None, wholes[v])
                continue
            sliced[v] = along
            env[v] = Value(along, part.slice(wholes[v], along))
        if not sliced:
            return False
        given = dict(env)
        moved = [v for v in given if v in self._body.active]

        def run(*arrays: Any) -> list[Any]:
            pairs = zip(moved, arrays, strict=True)
            local = given | {v: Value(given[v].state, x) for v, x in pairs}
            part.run(self._body.graph, [e], local)
            return [local[v].array for v in e.outvars if is_inexact(v)]

        try:
            part.run(self._body.graph, [e], env)
            check_backward([e], run, *(given[v].array for v in moved))
        except MixesBatchError:
            return False
        states = [env[v].state for v in e.outvars]
        if not all(isinstance(s, Along) or s == "sum" for s in states):
            return False
        ready = lambda v: self._level[v] + (v in self._rows and v not in sliced)
        level = max(map(ready, variables(e.invars)))
        segment = self._segments.setdefault(level, RowSegment())
        segment.eqns.append(e)
        segment.read_whole.append(read_whole)
        for v in e.outvars:
            if env[v].state == "sum":
                segment.sums.append(v)
                self._level[v] = level + 1
            else:
                self._rows[v] = env[v]
                self._level[v] = level
        return True

    def _along(self, v: Var) -> Along | None:
        """Where a value has rows; None if it has none."""
        if v in self._rows:
            state = self._rows[v].state
            assert isinstance(state, Along)  # by _try_rows
            return state
        axis = _axis_of(v, self._chunks.length) if v in self._reached else None
        return None if axis is None else Along(axis)

    def _add_whole(self, e: JaxprEqn) -> None:
        reads = variables(e.invars)
        level = max((self._level[v] + (v in self._rows) for v in reads), default=0)
        self._whole.setdefault(level, []).append(e)
        self._level |= dict.fromkeys(e.outvars, level)

    def finish(self) -> RowSplit:
        """The levels, without segments that are not worth a loop."""
        graph = self._body.graph
        total = sum(bytes_of(v) for e in graph.eqns for v in e.outvars)
        last = max([*self._whole, *self._segments], default=0)
        whole = [list(self._whole.get(i, ())) for i in range(last + 1)]
        segments = [self._segments.get(i, RowSegment()) for i in range(last + 1)]
        self._run_where_read(whole, segments)
        for i, segment in enumerate(segments):
            size = sum(bytes_of(v) for e in segment.eqns for v in e.outvars)
            if size < _WORTHWHILE * total:
                whole[i] += segment.eqns
                segments[i] = RowSegment()
        readers = self._find_readers(whole, segments)
        made = [{v for e in s.eqns for v in e.outvars} for s in segments]
        for i, segment in enumerate(segments):
            for v in [v for e in segment.eqns for v in e.outvars]:
                # Other segments may make it for themselves.
                is_outside = any(n < 0 or v not in made[n] for n in readers.get(v, ()))
                if is_outside and v not in segment.sums:
                    state = self._along(v)
                    assert state is not None  # by _try_rows
                    segment.rows[v] = state
            for e, read_whole in zip(segment.eqns, segment.read_whole, strict=True):
                for v in variables(e.invars):
                    along = self._along(v)
                    if along and v not in read_whole and v not in made[i]:
                        segment.sliced[v] = along
        if not any(s.eqns for s in segments):
            raise MixesBatchError("no segment treats rows one by one")
        return RowSplit(whole, segments)

    def _run_where_read(
        self, whole: Sequence[list[JaxprEqn]], segments: Sequence[RowSegment]
    ) -> None:
        """Run operations in the later segments that read them, if fewer rows pass then.

        A difference from the mean of the batch would pass to the next segment beside
        the rows that it is a difference of, which pass as well.
        """
        readers = self._find_readers(whole, segments)
        inputs = set(self._body.graph.inputs)
        for i, segment in reversed([*enumerate(segments)]):
            pairs = zip(segment.eqns, segment.read_whole, strict=True)
            for e, read_whole in reversed([*pairs]):
                read_in = set().union(*(readers.get(v, ()) for v in e.outvars))
                later = read_in - {i}
                if not later or _WHOLE in later or {*e.outvars} - {*self._rows}:
                    continue
                # What is computed more than once must be cheap.
                if len(read_in) > 1 and is_heavy(e):
                    continue
                # Values that do not wait for these segments yet.
                new = [
                    v
                    for v in set(variables(e.invars)) - inputs
                    if self._level[v] == i and not readers[v] - {i}
                ]
                if sum(map(bytes_of, new)) >= sum(map(bytes_of, e.outvars)):
                    continue
                for n in later:
                    segments[n].eqns.insert(0, e)
                    segments[n].read_whole.insert(0, read_whole)
                if i not in read_in:
                    at = [id(own) for own in segment.eqns].index(id(e))
                    del segment.eqns[at], segment.read_whole[at]
                readers = self._find_readers(whole, segments)

    def _find_readers(
        self, whole: Sequence[list[JaxprEqn]], segments: Sequence[RowSegment]
    ) -> dict[Var, set[int]]:
        """The segments that read some rows of each value; `_WHOLE` for all others."""
        found = {v: {_WHOLE} for v in variables(self._body.graph.outputs)}
        for v in (v for eqns in whole for e in eqns for v in variables(e.invars)):
            found.setdefault(v, set()).add(_WHOLE)
        for i, segment in enumerate(segments):
            for e, read_whole in zip(segment.eqns, segment.read_whole, strict=True):
                for v in variables(e.invars):
                    where = _WHOLE if v in read_whole else i
                    found.setdefault(v, set()).add(where)
        return found


def _whole_reads(e: JaxprEqn) -> Iterator[frozenset[Var]]:
    """List the operands that an operation may read whole: none, or one of a product."""
    yield frozenset()
    operands = variables(e.invars)
    if e.primitive.name == "dot_general" and len(set(operands)) == 2:
        yield from (frozenset({v}) for v in reversed(operands))


def _axis_of(v: Var, length: int) -> int | None:
    shape = getattr(v.aval, "shape", ())
    return shape.index(length) if length in shape else None


def _run_whole(graph: Graph, eqns: Sequence[JaxprEqn], env: dict[Var, Any]) -> None:
    own = [v for e in eqns for v in e.outvars]
    reads = list(dict.fromkeys(v for e in eqns for v in variables(e.invars)))
    reads = [v for v in reads if v in env]
    values = graph.run(eqns, reads, own)(*(env[v] for v in reads))
    env |= zip(own, values, strict=True)


def _run_chunks(
    graph: Graph, segment: RowSegment, chunks: RowChunks, env: dict[Var, Any]
) -> None:
    """Run a segment chunk by chunk, adding its results to `env`."""
    reads = {v for e in segment.eqns for v in variables(e.invars) if v in env}
    # The gradients of whole values are sums over the chunks, in the type that the loop
    # reads them in: sums of many terms lose their last digits in half precision.
    whole = {v: env[v].astype(accumulator_type(v)) for v in reads if _is_summed(v)}
    as_read = lambda v: whole[v].astype(env[v].dtype) if v in whole else env[v]

    def step(sums: list[Any], given: Any) -> Any:
        index, pieces = given
        part = BatchPart(chunks.length, chunks.count, index)
        own: dict[Var, Value] = {
            v: Value(along, piece)
            for (v, along), piece in zip(segment.sliced.items(), pieces, strict=True)
        }
        for e, read_whole in zip(segment.eqns, segment.read_whole, strict=True):
            local = {
                v: own[v]
                if v in own and v not in read_whole
                else Value(None, as_read(v))
                for v in variables(e.invars)
            }
            part.run(graph, [e], local)
            own |= {v: local[v] for v in e.outvars}
        added = [
            s + own[v].array.astype(s.dtype)
            for s, v in zip(sums, segment.sums, strict=True)
        ]
        return added, [own[v].array for v in segment.rows]

    pieces = [_split(env[v], a, chunks.count) for v, a in segment.sliced.items()]
    indices = jnp.arange(chunks.count, dtype=jnp.int32)
    start = list(map(accumulator, segment.sums))
    sums, rows = lax.scan(step, start, (indices, pieces))
    for v, total in zip(segment.sums, sums, strict=True):
        env[v] = total.astype(shape_of(v).dtype)
    for (v, along), parts in zip(segment.rows.items(), rows, strict=True):
        env[v] = join_parts(parts, along, shape_of(v).shape)


def _is_summed(v: Var) -> bool:
    return accumulator_type(v) != shape_of(v).dtype


def _split(array: Any, along: Along, count: int) -> Any:
    """The rows of each chunk, with the chunks as the first axis."""
    axis, shape = along.axis, array.shape
    mine = shape[axis] // (along.outer * count)
    rest = shape[axis + 1 :]
    split = array.reshape(*shape[:axis], along.outer, count, mine, *rest)
    split = jnp.moveaxis(split, axis + 1, 0)
    return split.reshape(count, *shape[:axis], along.outer * mine, *rest)
