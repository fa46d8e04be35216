"""Run a model or its gradients in micro-batches, if a batch's rows are independent.

Micro-batches give the outputs of the whole batch only if rows do not affect each
other's outputs. Batch statistics and random draws are known to violate this; every
other model is tested on a few rows of random numbers.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.errors import ShapeError
from frugax.models.graph import ModelGraph, Spec

Specs = Mapping[str, jax.ShapeDtypeStruct]
# Rows that are tested whole and in two halves; a half has more than one row, so that a
# dependence on the number of rows shows.
_ROWS = 4


@dataclasses.dataclass(frozen=True)
class BatchAxis:
    """The data that can be split along their first axis.

    Attributes:
        keys: of the data.
        rows: length of their first axis.
    """

    keys: tuple[str, ...]
    rows: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of micro-batches to try: divisors that at least double each time."""
        counts = [1]
        for n in range(2, self.rows + 1):
            # Equal pieces only: lax.scan traces one body for one shape, and a shorter
            # last piece would need a second program.
            if self.rows % n == 0 and n >= 2 * counts[-1]:
                counts.append(n)
        return tuple(counts[1:])


def find_batch_axis(graph: ModelGraph, specs: Mapping[str, Spec]) -> BatchAxis | None:
    """Find the inputs that share the batch axis.

    These are the inputs whose first dimension the model leaves free; without any, those
    with the most common number of rows.
    """
    first = {
        key: specs[key].shape[0]
        for key, about in graph.inputs.items()
        if about.dtype != "key" and key in specs and specs[key].shape
    }
    # A stated first dimension may be anything, such as the rows of a table. A free one
    # is a batch by the model's own word.
    free = [
        key
        for key in first
        if (shape := graph.inputs[key].known_shape) and not isinstance(shape[0], int)
    ]
    chosen = {key: first[key] for key in free} or first
    if not chosen:
        return None
    # The most common length; among equally common ones, that of the first input.
    rows, _ = collections.Counter(chosen.values()).most_common(1)[0]
    return BatchAxis(tuple(k for k, n in chosen.items() if n == rows), rows)


def explain_indivisible(
    forward: Callable[[Any, Any], dict[str, Any]],
    params: Specs,
    data: Specs,
    axis: BatchAxis,
    graph: ModelGraph,
) -> str:
    """Explain why batches cannot be split; empty if they can."""
    for key, weight in graph.weights.items():
        if weight.kind == "state":
            return f"{key!r} is updated by every batch, as in a batch norm"
    for key, about in graph.inputs.items():
        if about.dtype == "key":
            return f"the model draws random numbers for whole batches from {key!r}"

    def rows_of(number: int) -> dict[str, jax.ShapeDtypeStruct]:
        resized = {
            k: jax.ShapeDtypeStruct((number, *data[k].shape[1:]), data[k].dtype)
            for k in axis.keys
        }
        return {**data, **resized}

    half = _ROWS // 2
    try:
        whole, part = (
            jax.eval_shape(forward, params, rows_of(n)) for n in (_ROWS, half)
        )
    except (ShapeError, TypeError, ValueError) as e:
        return (
            f"the model does not accept other numbers of rows: {str(e).splitlines()[0]}"
        )
    for name in whole:
        shape = whole[name].shape
        if part[name].shape != (half, *shape[1:]) or shape[:1] != (_ROWS,):
            return f"the output {name!r} {shape} does not have a row for each input row"

    with jax.ensure_compile_time_eval():  # concrete numbers, even inside a jit
        some = {**_draw_numbers(params, 0), **_draw_numbers(rows_of(_ROWS), 1)}
        weights = {k: some[k] for k in params}
        rows = {k: some[k] for k in data}
        take = lambda at: {**rows, **{k: rows[k][at] for k in axis.keys}}
        run = jax.jit(forward)
        whole = run(weights, rows)
        halves = [run(weights, take(at)) for at in (slice(half), slice(half, None))]
        for name, value in whole.items():
            together = jnp.concatenate([h[name] for h in halves])
            if not _is_close(value, together):
                return f"rows of a batch affect each other's output {name!r}"
    return ""


def _draw_numbers(specs: Specs, seed: int) -> dict[str, Any]:
    """Draw inputs that most models accept: floats in (0.1, 1), integers 0 and 1."""
    draws = np.random.default_rng(seed)
    numbers: dict[str, Any] = {}
    for key, spec in specs.items():
        if jnp.issubdtype(spec.dtype, jnp.floating):
            # Away from 0, so that logarithms, roots and quotients of the model stay
            # finite.
            value = draws.uniform(0.1, 1, spec.shape)
            if seed == 0:
                fan_in = (1, *spec.shape)[-1]
                value *= draws.choice([-1.0, 1.0], spec.shape) / math.sqrt(fan_in)
            numbers[key] = jnp.asarray(value, spec.dtype)
        else:
            # 0 and 1 are valid labels, token ids and masks for nearly every model.
            numbers[key] = jnp.asarray(draws.integers(0, 2, spec.shape), spec.dtype)
    return numbers


def _is_close(whole: Any, parts: Any) -> bool:
    share = 0.0
    if jnp.issubdtype(whole.dtype, jnp.floating):
        # Other batch sizes change the order of sums, and so the last digits.
        share = max(1e-4, 16 * float(jnp.finfo(whole.dtype).eps))
    whole, parts = (np.asarray(a).astype(np.float64) for a in (whole, parts))
    if not np.isfinite(whole).all():
        return False  # such numbers prove nothing
    allowed = share * np.abs(whole).max(initial=0.0)
    return bool(np.abs(whole - parts).max(initial=0.0) <= allowed)


def split_rows(
    values: Mapping[str, Any], keys: tuple[str, ...], number: int
) -> dict[str, Any]:
    """Reshape these entries to (micro-batches, rows of one, ...)."""
    return {
        k: v.reshape(number, v.shape[0] // number, *v.shape[1:])
        for k, v in values.items()
        if k in keys
    }


def micro_batch_shapes(
    values: Specs, keys: tuple[str, ...], number: int
) -> dict[str, Any]:
    """Compute the shapes of one micro-batch."""
    resized = {
        k: jax.ShapeDtypeStruct((v.shape[0] // number, *v.shape[1:]), v.dtype)
        for k, v in values.items()
        if k in keys
    }
    return {**values, **resized}


def _join_rows(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Reshape (micro-batches, rows of one, ...) to (rows, ...)."""
    return {k: v.reshape(-1, *v.shape[2:]) for k, v in outputs.items()}


def micro_batch_outputs(
    forward: Callable[[Any, Any], dict[str, Any]], keys: tuple[str, ...], number: int
) -> Callable[[Any, Any], dict[str, Any]]:
    """Wrap `forward` to run one micro-batch at a time."""

    def run(params: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        rest = {k: v for k, v in data.items() if k not in keys}

        def step(carry: tuple[()], piece: Any) -> tuple[tuple[()], Any]:
            return carry, forward(params, {**rest, **piece})

        return _join_rows(jax.lax.scan(step, (), split_rows(data, keys, number))[1])

    return run


def micro_batch_gradients(
    pull: Callable[[Any, Any, Any], tuple[Any, Any]],
    keys: tuple[str, ...],
    number: int,
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Wrap `pull(params, data, cotangents) -> (outputs, gradients)` to run in pieces.

    The gradients of the micro-batches are summed, in float32 at least.
    """

    def run(
        params: Mapping[str, Any], data: Mapping[str, Any], cotangents: Any
    ) -> tuple[Any, Any]:
        rest = {k: v for k, v in data.items() if k not in keys}

        def step(sums: Any, piece: Any) -> tuple[Any, Any]:
            outputs, grads = pull(params, {**rest, **piece[0]}, piece[1])
            add = lambda s, g: s + g.astype(s.dtype)
            return jax.tree.map(add, sums, grads), outputs

        # Half-precision sums of many pieces lose the small ones: bfloat16 has 8 bits,
        # so from 256 equal terms on a sum does not grow at all.
        zeros = {
            k: jnp.zeros(p.shape, jnp.promote_types(p.dtype, jnp.float32))
            for k, p in params.items()
        }
        pieces = (
            split_rows(data, keys, number),
            split_rows(cotangents, tuple(cotangents), number),
        )
        # A loop and not an unrolled sum. Unrolled, XLA could run all pieces at once,
        # and the memory that pieces save would be needed again.
        sums, outputs = jax.lax.scan(step, zeros, pieces)
        grads = {k: s.astype(params[k].dtype) for k, s in sums.items()}
        return _join_rows(outputs), grads

    return run
