"""Build `jax.value_and_grad` of a loss that recomputes and chunks as a plan says."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_batching import sequential_vmap

from frugax.jaxprs import MARKS, is_vmapped, open_checkpoints

from .._plan import BatchChunks, PlanParts, Segment, check_ranges
from ._backward import value_and_gradients
from ._batch_chunks import run_in_chunks, split_batch
from ._batch_rules import MixesBatchError
from ._graph import RematGraph, trace_loss
from ._late_copies import copy_late
from ._loops import rewrite_loops
from ._row_segments import chunk_rows
from ._shard_maps import plan_shard_map


def build_value_and_grad(
    loss: Callable[..., Any],
    parts: PlanParts,
    fingerprint: str,
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prepare: Callable[..., RematGraph] | None = None,
) -> Callable[..., Any]:
    """`jax.value_and_grad(loss, argnums, has_aux)`, run as these parts of a plan say.

    The loss is traced at each call, or by `prepare` in the place of `prepare_loss`.
    """
    if prepare is None:
        how: dict[str, Any] = {"argnums": argnums, "has_aux": has_aux}
        prepare = functools.partial(prepare_loss, loss, **how)
    is_plain = not (parts.segments or parts.batch or parts.copies or parts.rows)

    def follow(body: RematGraph) -> tuple[RematGraph, tuple[Segment, ...]]:
        if parts.batch:
            body = chunk_batch(body, parts.batch)
        if parts.copies:
            body = copy_late(body, parts.copies)
        if parts.rows:
            body = chunk_rows(body, parts.rows)
        body = rewrite_loops(body, parts.body_plans)
        return body, _place_segments(body, parts.segments)

    def step(*args: Any) -> tuple[Any, Any]:
        body = prepare(args, is_opened=False)
        if body.graph.fingerprint != fingerprint:
            raise ValueError(
                "this plan was made for another loss or other shapes: its fingerprint "
                f"is {fingerprint:.8}, that of this loss {body.graph.fingerprint:.8}. "
                "Plan again for the shapes of these arguments: remat.plan takes them "
                "as example_args, and an enclosing program as `within`."
            )
        if is_plain:
            return jax.value_and_grad(loss, argnums, has_aux=has_aux)(*args)
        if parts.is_opened:
            body = prepare(args, is_opened=True)
        if parts.shard_map is None:
            body, segments = follow(body)
        else:
            body = plan_shard_map(body, parts.shard_map, follow)
            segments = _keep_all(body)
        outputs, flat = value_and_gradients(body, segments, jax.tree.leaves(args))
        value = jax.tree.unflatten(body.graph.out_tree, outputs)
        remaining = iter(flat)
        gradient = lambda n: jax.tree.map(lambda _: next(remaining), args[n])
        if isinstance(argnums, int):
            return value, gradient(argnums)
        return value, tuple(gradient(n) for n in argnums)

    def call(*args: Any) -> tuple[Any, Any]:
        if any(map(is_vmapped, jax.tree.leaves(args))):
            # `vmap` would turn the branch of a gate into a `select` and hold all rows
            # at once. One row after another keeps to the plan's bytes.
            return sequential_vmap(step)(*args)
        return step(*args)

    # Without a plan it is the program of the user, who chose to run all rows at once.
    return step if is_plain else call


def prepare_loss(
    loss: Callable[..., Any],
    args: Sequence[Any],
    *,
    is_opened: bool = False,
    **how: Any,
) -> RematGraph:
    """`trace_loss`, with the loss's own `jax.checkpoint` regions opened if told to."""
    return trace_loss(open_checkpoints(loss) if is_opened else loss, args, **how)


def _place_segments(
    body: RematGraph, segments: tuple[Segment, ...]
) -> tuple[Segment, ...]:
    """The segments of a plan, numbered as the operations are here.

    Plans do not count the marks of `shard_map`, which are there only inside of it.
    """
    if not segments:
        return _keep_all(body)
    own = [i for i, e in enumerate(body.eqns) if e.primitive.name not in MARKS]
    check_ranges(segments, 0, len(own))
    if len(own) == len(body.eqns):
        return segments
    edges = [0, *own[1:], len(body.eqns)]

    def place(s: Segment) -> Segment:
        return dataclasses.replace(
            s,
            start=edges[s.start],
            stop=edges[s.stop],
            kept=tuple(own[i] for i in s.kept),
            nested=tuple(map(place, s.nested)),
        )

    return tuple(map(place, segments))


def _keep_all(body: RematGraph) -> tuple[Segment, ...]:
    """The plan that recomputes nothing."""
    stop = len(body.eqns)
    return (Segment(start=0, stop=stop, gate=None, saved_bytes=0, recomputed_flops=0),)


def chunk_batch(body: RematGraph, batch: BatchChunks) -> RematGraph:
    """The same loss, which runs on one chunk of its batch after another.

    Raises:
        ValueError: the plan does not fit this loss.
    """
    try:
        split = split_batch(body, batch)
    except MixesBatchError as e:
        raise ValueError(
            f"damaged plan: this loss cannot run in {batch.count} chunks of its batch "
            f"({e}). Plan again with remat.plan."
        ) from e
    chunk = rewrite_loops(split.chunk, batch.body_plans)
    segments = _place_segments(chunk, batch.segments)
    run = lambda values, given: value_and_gradients(chunk, segments, values, given)
    return run_in_chunks(body, split, run)
