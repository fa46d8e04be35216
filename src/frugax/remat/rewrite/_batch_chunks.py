"""Run a loss on one chunk of the batch after another, and accumulate the gradients.

The operations of a loss fall into three parts. Some do not depend on the batch and run
once, before. Those that work on rows of the batch run chunk by chunk in a loop. What is
computed from the sums over all rows runs once, after. The gradient of the loss with
respect to those sums is usually known before the loop, because the loss is linear in
them; where it depends on some of them, a first loop computes these. Each chunk's
backward pass follows its forward pass at once, so that nothing is computed twice.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frugax.jaxprs import (
    Graph,
    JaxprEqn,
    Var,
    flops_of,
    remove_dead_code,
    shape_of,
    trace,
    use_fast_convolutions,
    variables,
)

from .._plan import BatchChunks
from ._active import is_inexact
from ._batch_axis import BatchPart, check_backward
from ._batch_rules import Along, MixesBatchError, State, Value, join_parts
from ._gates import zeros_of
from ._graph import (
    RematGraph,
    accumulator,
    accumulator_type,
    prepare_graph,
    replace_operations,
)

# The values and gradients of a chunk, from (values, cotangents of the sums).
RunChunk = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSplit:
    """A loss in three parts: before the batch, chunk by chunk, and after.

    Attributes:
        chunk: one chunk as a loss of its own. Its inputs are the number of the chunk,
            `whole` and `sliced`, its outputs `sums` and `rows`, the sums of real
            numbers first.
        count: the number of chunks.
        is_spread: whether a chunk has rows from everywhere, see `BatchPart`.
        before: the operations that do not depend on the batch.
        after: those that depend on sums over it.
        whole: the values that each chunk reads whole.
        sliced: those of which it reads its own rows.
        sums: sums over the batch.
        rows: results that have a row for each row of the batch.
        batch: the length of the batch.
        repeated_flops: of what each chunk computes for all rows, before it takes its
            own, as in a loop over time whose inputs are whole.
    """

    chunk: RematGraph
    count: int
    is_spread: bool
    before: tuple[JaxprEqn, ...]
    after: tuple[JaxprEqn, ...]
    whole: tuple[Var, ...]
    sliced: tuple[tuple[Var, Along], ...]
    sums: tuple[Var, ...]
    rows: tuple[tuple[Var, Along], ...]
    batch: int
    repeated_flops: int

    @property
    def reads(self) -> list[Var]:
        """The values that each chunk reads, in the order of its inputs."""
        return [*self.whole, *(v for v, _ in self.sliced)]

    @property
    def added(self) -> list[Var]:
        """The values to whose gradients each chunk adds its own."""
        pairs = zip(self.whole, self.chunk.graph.args[1:], strict=False)
        return [v for v, x in pairs if x in self.chunk.wrt]

    @property
    def held_bytes(self) -> int:
        """Bytes that the loop carries beside a chunk.

        The sums of most gradients are results of the program, for which there is room.
        Those of values that are computed before, or in another type, are not.
        """
        before = {v for e in self.before for v in e.outvars}
        sums = [(v, accumulator_type(v)) for v in self.added]
        return sum(
            shape_of(v).size * dtype.itemsize
            for v, dtype in sums
            if v in before or dtype != shape_of(v).dtype
        )


class _OuterPart(BatchPart):
    """A part of the batch that notes which whole values it reads rows of."""

    def __init__(
        self,
        batch: int,
        chunks: BatchChunks,
        index: Any,
        graph: Graph,
        env: dict[Var, Value],
    ) -> None:
        is_spread = chunks.devices > 1
        super().__init__(batch, chunks.count, index, is_spread=is_spread)
        self.sliced: dict[tuple[Var, Along], Any] = {}
        self._graph = graph
        self._vars = {id(value): v for v, value in env.items()}
        self._env = env

    def coerce(self, value: Value, state: State) -> Value:
        v = self._vars.get(id(value))
        if v is None or value.state is not None or not isinstance(state, Along):
            return super().coerce(value, state)
        place = self._graph.defined_at[v]
        eqn = self._graph.eqns[place]
        if place >= 0 and _repeats(eqn, state):
            # Zeros and the like are made in the length of the chunk at once.
            atom: Any = eqn.invars[0]
            operand = self._env[atom].array if variables([atom]) else atom.val
            shape = self.shorten(shape_of(v).shape, state)
            axes = eqn.params["broadcast_dimensions"]
            divided = eqn.params["sharding"]
            zeros = lax.broadcast_in_dim(operand, shape, axes, out_sharding=divided)
            return Value(state, zeros)
        key = v, state
        if key not in self.sliced:
            self.sliced[key] = super().coerce(value, state).array
        return Value(state, self.sliced[key])


def _repeats(eqn: JaxprEqn, along: Along) -> bool:
    return (
        eqn.primitive.name == "broadcast_in_dim"
        and len(eqn.invars) == 1
        and along.axis not in eqn.params["broadcast_dimensions"]
    )


def _has_side_effect(eqn: JaxprEqn) -> bool:
    # Collectives have their axis as an effect, whose class has no public name.
    return any(type(e).__name__ != "NamedAxisEffect" for e in eqn.effects)


def split_batch(body: RematGraph, chunks: BatchChunks) -> BatchSplit:
    """Split a loss into its parts before, along and after the batch.

    Raises:
        MixesBatchError: the loss does not treat the rows of the batch one by one.
    """
    graph = body.graph
    if not 0 <= chunks.operand < len(graph.inputs):
        raise MixesBatchError(f"there is no input {chunks.operand}")
    seed = graph.inputs[chunks.operand]
    along, count = Along(chunks.axis), chunks.count
    if shape_of(seed).ndim <= along.axis or shape_of(seed).shape[along.axis] % (
        count * chunks.devices
    ):
        raise MixesBatchError(f"the batch is not divisible in {count} chunks")
    batch = shape_of(seed).shape[along.axis]
    reached = {seed}
    dependent: list[JaxprEqn] = []
    for e in graph.eqns:
        if reached & set(variables(e.invars)):
            reached |= set(e.outvars)
            dependent.append(e)
    if not dependent:
        raise MixesBatchError("no operation reads this input")
    own = {v for e in dependent for v in e.outvars}
    read = dict.fromkeys(
        v for e in dependent for v in variables(e.invars) if v not in own
    )
    for v in list(read):  # the operands of broadcasts that are made again in chunks
        place = graph.defined_at[v]
        if place >= 0 and graph.eqns[place].primitive.name == "broadcast_in_dim":
            read |= dict.fromkeys(variables(graph.eqns[place].invars))
    whole = tuple(read)
    along_of: dict[Var, State] = {}
    after: list[JaxprEqn] = []
    sums: dict[Var, None] = {}
    slices: list[tuple[Var, Along]] = []
    results = set(variables(graph.outputs))

    def run_chunk(given: Any, index: Any, values: Any, parts: Any) -> Any:
        env = {v: Value(None, x) for v, x in zip(whole, values, strict=True)}
        part = _OuterPart(batch, chunks, index, graph, env)
        if given:
            part.sliced = dict(zip(slices, parts, strict=True))
        late: set[Var] = set()
        after.clear()
        sums.clear()
        is_first = Value(along, part.coerce(env[seed], along).array)
        for e in dependent:
            atoms: list[Any] = list(e.invars)
            inputs = [
                is_first if a is seed else env.get(a) if variables([a]) else None
                for a in atoms
            ]
            read_late = [v for v in variables(e.invars) if v in late]
            added = [
                v for v in variables(e.invars) if v in env and env[v].state == "sum"
            ]
            if read_late or added:
                if any(i is not None and isinstance(i.state, Along) for i in inputs):
                    raise MixesBatchError(
                        f"{e.primitive.name} combines rows with a sum over the batch"
                    )
                if e.outvars and _has_side_effect(e):
                    raise MixesBatchError(f"{e.primitive.name} has a side effect")
                after.append(e)
                late |= set(e.outvars)
                sums.update(dict.fromkeys(added))
                continue
            env[seed] = is_first
            part.run(graph, [e], env)
        for v in results & env.keys():
            if env[v].state == "sum":
                sums[v] = None
        ordered = sorted(sums, key=lambda v: not is_inexact(v))
        row_vars = [v for v in own & results if v in env and v not in sums]
        row_vars.sort(key=lambda v: graph.defined_at[v])
        along_of.clear()
        along_of.update({v: env[v].state for v in row_vars})
        if not given:
            slices[:] = part.sliced
        outs = [env[v].array for v in (*ordered, *row_vars)]
        sums.clear()
        sums.update(dict.fromkeys(ordered))
        return outs

    index = jax.ShapeDtypeStruct((), jnp.int32)
    shapes = list(map(shape_of, whole))
    trace(functools.partial(run_chunk, False), (index, shapes, ()))
    part = BatchPart(batch, count, index)
    shorten = lambda x, along: x.update(shape=part.shorten(x.shape, along))
    pieces = [shorten(shape_of(v), along) for v, along in slices]
    inner = trace(functools.partial(run_chunk, True), (index, shapes, pieces))
    once = sum(map(flops_of, dependent)) - sum(map(flops_of, after))
    # Of the rest, each of the chunks computes its share.
    more = count * sum(map(flops_of, inner.eqns)) - once
    repeated = max(more, 0) // max(count - 1, 1)
    inner = use_fast_convolutions(inner, everywhere=True)
    rows = []
    for v, state in along_of.items():
        if not isinstance(state, Along):
            raise MixesBatchError("a result depends on the batch in an unknown way")
        rows.append((v, state))
    if not sums or graph.outputs[0] not in own:
        raise MixesBatchError("the loss is not a sum over the batch")
    if graph.outputs[0] in along_of:
        raise MixesBatchError("the loss is not a sum over the batch")
    # Whole values that are only sliced need not be handed over whole.
    live = set(variables(a for e in inner.eqns for a in e.invars)) | set(
        variables(inner.outputs)
    )
    names = inner.args[1:]
    moved = [
        x
        for v, x in zip([*whole, *(v for v, _ in slices)], names, strict=True)
        if v in body.active and x in live
    ]
    num_sums = sum(map(is_inexact, sums))
    read_batch = set(map(id, dependent))
    return BatchSplit(
        chunk=prepare_graph(inner, tuple(moved), num_sums, {}),
        count=count,
        is_spread=chunks.devices > 1,
        # Not by their results: an operation may have none.
        before=tuple(e for e in graph.eqns if id(e) not in read_batch),
        after=tuple(after),
        whole=whole,
        sliced=tuple(slices),
        sums=tuple(sums),
        rows=tuple(rows),
        batch=batch,
        repeated_flops=repeated,
    )


def check_split(split: BatchSplit) -> None:
    """Check that the gradients of a chunk are those of its rows alone.

    Raises:
        MixesBatchError: a derivative rule of the user's own mixes rows of the batch.
    """
    chunk, graph = split.chunk, split.chunk.graph
    sums = graph.outputs[: chunk.num_differentiated]

    def check(*values: Any) -> None:
        env = dict(zip(graph.inputs, values, strict=True))
        rest = [v for v in graph.inputs if v not in chunk.wrt]
        run = graph.run(graph.eqns, [*rest, *chunk.wrt], sums)
        run = functools.partial(run, *(env[v] for v in rest))
        check_backward(graph.eqns, run, *(env[v] for v in chunk.wrt))

    jax.eval_shape(check, *map(shape_of, graph.inputs))


def run_in_chunks(
    body: RematGraph, split: BatchSplit, run_chunk: RunChunk
) -> RematGraph:
    """The same loss, whose part along the batch runs chunk by chunk.

    It becomes one operation with a backward rule of its own.

    Args:
        body: the loss.
        split: its parts.
        run_chunk: the values and gradients of `split.chunk`.
    """
    graph = body.graph
    own = {v for e in graph.eqns for v in e.outvars} - {
        v for e in split.before for v in e.outvars
    }
    outputs = [v for v in dict.fromkeys(variables(graph.outputs)) if v in own]
    late = {v for e in split.after for v in e.outvars}
    read_late = dict.fromkeys(
        v
        for v in [*(v for e in split.after for v in variables(e.invars)), *outputs]
        if v not in late and v not in split.sums and v not in dict(split.rows)
    )
    reads = tuple(dict.fromkeys([*split.reads, *read_late]))
    loop = _ChunkLoop(body, split, run_chunk, reads, tuple(outputs), tuple(read_late))

    def run(env: dict[Var, Any]) -> None:
        # At once, since some of these operations may print.
        wanted = [*reads, *(v for v in variables(graph.outputs) if v not in own)]
        before = graph.run(split.before, graph.inputs, wanted)
        env |= zip(wanted, before(*(env[v] for v in graph.inputs)), strict=True)
        env |= zip(outputs, loop.call([env[v] for v in reads]), strict=True)

    return replace_operations(body, run)


@dataclasses.dataclass(frozen=True, eq=False)
class _ChunkLoop:
    """The loop over chunks, with the operations after it, as one operation.

    Attributes:
        reads: the values that it reads.
        outputs: its results.
        read_late: those of `reads` that the operations after the loop read.
    """

    body: RematGraph
    split: BatchSplit
    run_chunk: RunChunk
    reads: tuple[Var, ...]
    outputs: tuple[Var, ...]
    read_late: tuple[Var, ...]

    def call(self, values: Sequence[Any]) -> list[Any]:
        """The results, differentiable in reverse mode."""
        names, loss = self.reads, self.body.graph.outputs[0]
        moved = [i for i, v in enumerate(names) if v in self.body.active]

        @jax.custom_vjp
        def whole(*values: Any) -> list[Any]:
            totals = self._totals(dict(zip(names, values, strict=True)), None)
            return self._finish(dict(zip(names, values, strict=True)), totals)

        def forward(*values: Any) -> tuple[list[Any], list[Any]]:
            return self._value_and_gradients(dict(zip(names, values, strict=True)))

        def backward(grads: list[Any], cotangents: list[Any]) -> tuple[Any, ...]:
            # Only the loss is differentiated, so its cotangent scales everything.
            scale = cotangents[self.outputs.index(loss)]
            found: list[Any] = [None] * len(names)
            for i, g in zip(moved, grads, strict=True):
                found[i] = g * scale.astype(g.dtype)
            return tuple(found)

        whole.defvjp(forward, backward)
        return whole(*values)

    def _pieces(self, env: dict[Var, Any], index: Any) -> list[Any]:
        split = self.split
        part = BatchPart(split.batch, split.count, index, is_spread=split.is_spread)
        return [
            index,
            *(env[v] for v in self.split.whole),
            *(part.slice(env[v], along) for v, along in self.split.sliced),
        ]

    def _totals(self, env: dict[Var, Any], only: Sequence[bool] | None) -> list[Any]:
        """The results of all chunks together, or some of the sums alone."""
        split, graph = self.split, self.split.chunk.graph
        wanted = [True] * len(graph.outputs)
        if only is not None:
            wanted = [*only, *[False] * (len(graph.outputs) - len(only))]
        outs = [o for o, w in zip(graph.outputs, wanted, strict=True) if w]
        live, used = remove_dead_code(
            graph.jaxpr.replace(outvars=outs), [True] * len(outs)
        )
        outvars: Any = live.outvars
        run = graph.run(live.eqns, live.invars, outvars)
        kept = [v for v, w in zip(split.sums, wanted, strict=False) if w]

        def step(carry: list[Any], index: Any) -> Any:
            inputs = [*graph.const_values, *self._pieces(env, index)]
            found = run(*(x for x, u in zip(inputs, used, strict=True) if u))
            return _add(carry, found), found[len(kept) :]

        start = list(map(accumulator, kept))
        sums, rows = lax.scan(step, start, jnp.arange(split.count, dtype=jnp.int32))
        return [*_as_stored(sums, kept), *self._join_rows(rows)]

    def _join_rows(self, rows: Sequence[Any]) -> list[Any]:
        return [
            self._join(r, along, v)
            for r, (v, along) in zip(rows, self.split.rows, strict=False)
        ]

    def _join(self, parts: Any, along: Along, v: Var) -> Any:
        """A whole array from the rows of each chunk."""
        return join_parts(
            parts, along, shape_of(v).shape, is_spread=self.split.is_spread
        )

    def _finish(
        self, env: dict[Var, Any], totals: Sequence[Any], *, prints: bool = True
    ) -> list[Any]:
        """The results, from the totals of the chunks."""
        split = self.split
        inputs = [*split.sums, *(v for v, _ in split.rows), *self.read_late]
        after = [e for e in split.after if prints or e.outvars]
        run = self.body.graph.run(after, inputs, self.outputs)
        return run(*totals, *(env[v] for v in self.read_late))

    def _value_and_gradients(self, env: dict[Var, Any]) -> tuple[list[Any], list[Any]]:
        split, body = self.split, self.body
        num_real = sum(map(is_inexact, split.sums))
        loss_at = self.outputs.index(body.graph.outputs[0])
        late = [v for v in self.read_late if v in body.active]
        rows = [zeros_of(shape_of(v)) for v, _ in split.rows]

        def pull(sums: list[Any], late_values: list[Any]) -> Any:
            def loss(real: list[Any], some: list[Any]) -> Any:
                local = env | dict(zip(late, some, strict=True))
                totals = [*real, *sums[num_real:], *rows]
                return self._finish(local, totals, prints=False)[loss_at]

            return jax.grad(loss, argnums=(0, 1))(sums[:num_real], late_values)

        late_values = [env[v] for v in late]
        shapes = list(map(shape_of, split.sums))
        rule = trace(lambda sums: pull(sums, late_values)[0], (shapes,))
        _, used = remove_dead_code(rule.jaxpr, [True] * len(rule.outputs))
        is_read = used[len(rule.consts) :]
        known = list(map(zeros_of, shapes))
        active = [v in body.active for v in split.sums[:num_real]]
        # The gradients of a single number can be scaled once they are summed up, as
        # for a mean over the rows that a mask selects.
        is_scaled_later = (
            any(is_read)
            and sum(active) == 1
            and not shape_of(split.sums[active.index(True)]).ndim
        )
        if is_scaled_later:
            cotangents = [
                jnp.full_like(k, a) for k, a in zip(known, active, strict=False)
            ]
        else:
            if any(is_read):
                first = iter(self._totals(env, is_read))
                known = [
                    next(first) if r else k
                    for r, k in zip(is_read, known, strict=False)
                ]
            cotangents, _ = pull(known, late_values)

        read = split.reads
        wrt = [split.chunk.graph.args.index(x) - 1 for x in split.chunk.wrt]
        is_whole = [i < len(split.whole) for i in wrt]
        start = list(map(accumulator, split.sums))
        grads_start = [
            accumulator(read[i]) for i, w in zip(wrt, is_whole, strict=True) if w
        ]

        def step(carry: Any, index: Any) -> Any:
            sums, grads = carry
            outs, new = self.run_chunk(self._pieces(env, index), cotangents)
            shared = [g for g, w in zip(new, is_whole, strict=True) if w]
            own = [g for g, w in zip(new, is_whole, strict=True) if not w]
            return (_add(sums, outs), _add(grads, shared)), (outs[len(sums) :], own)

        indices = jnp.arange(split.count, dtype=jnp.int32)
        carry, (out_rows, own) = lax.scan(step, (start, grads_start), indices)
        sums = _as_stored(carry[0], split.sums)
        outs = self._finish(env, [*sums, *self._join_rows(out_rows)])
        total: dict[Var, Any] = {}
        shared, own = iter(carry[1]), iter(own)
        for i, w in zip(wrt, is_whole, strict=True):
            v = read[i]
            if w:
                g = next(shared).astype(shape_of(v).dtype)
            else:
                along = split.sliced[i - len(split.whole)][1]
                g = self._join(next(own), along, v)
            total[v] = total[v] + g if v in total else g
        at_totals, late_grads = pull(sums, late_values)
        if is_scaled_later:
            scale = at_totals[active.index(True)]
            total = {v: g * scale.astype(g.dtype) for v, g in total.items()}
        for v, g in zip(late, late_grads, strict=True):
            total[v] = total[v] + g if v in total else g
        moved = [v for v in self.reads if v in body.active]
        zeros = lambda v: zeros_of(shape_of(v))
        return outs, [total[v] if v in total else zeros(v) for v in moved]


def _add(totals: Sequence[Any], terms: Sequence[Any]) -> list[Any]:
    """Totals with one more term each; further terms are left out."""
    return [t + x.astype(t.dtype) for t, x in zip(totals, terms, strict=False)]


def _as_stored(totals: Sequence[Any], variables: Sequence[Var]) -> list[Any]:
    """Totals in the types of the variables that they are."""
    pairs = zip(totals, variables, strict=True)
    return [t.astype(shape_of(v).dtype) for t, v in pairs]
