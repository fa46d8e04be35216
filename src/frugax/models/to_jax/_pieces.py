"""A batch in pieces: whether a model allows it, and the loop that does it.

Pieces give what the whole batch gives only if no row of a batch has a part in another
row's outputs. Layers with statistics over the batch and random draws are known to break
that; anything else is tried out, on a few rows of random numbers.
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
# Rows that are tried whole and in two pieces; more than one in each, so that what
# depends on the number of rows shows.
_ROWS = 4


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The data that can be cut along their first axis.

    Attributes:
        keys: which.
        rows: how many rows they have.
    """

    keys: tuple[str, ...]
    rows: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers to try: divisors of the rows, each twice the last or more."""
        found = [1]
        for n in range(2, self.rows + 1):
            if self.rows % n == 0 and n >= 2 * found[-1]:
                found.append(n)
        return tuple(found[1:])


def find_pieces(graph: ModelGraph, specs: Mapping[str, Spec]) -> Pieces | None:
    """Which inputs share the axis of the batch.

    Those whose first dimension the model leaves free; if it leaves none, those with as
    many rows as most inputs have.

    Args:
        graph: the program.
        specs: shape and dtype of each input.
    """
    first = {
        key: specs[key].shape[0]
        for key, about in graph.inputs.items()
        if about.dtype != "key" and key in specs and specs[key].shape
    }
    free = [
        key
        for key in first
        if (said := graph.inputs[key].shape) and not isinstance(said[0], int)
    ]
    chosen = {key: first[key] for key in free} or first
    if not chosen:
        return None
    # The commonest length; of several, that of the first input.
    rows, _ = collections.Counter(chosen.values()).most_common(1)[0]
    return Pieces(tuple(k for k, n in chosen.items() if n == rows), rows)


def why_whole(
    forward: Callable[[Any, Any], dict[str, Any]],
    params: Specs,
    data: Specs,
    pieces: Pieces,
    graph: ModelGraph,
) -> str:
    """Why batches must go through whole; empty if pieces give the same.

    Args:
        forward: from parameters and data to outputs.
        params: shapes of the parameters.
        data: shapes of the data.
        pieces: what would be cut.
        graph: the program, with its weights.
    """
    for key, weight in graph.weights.items():
        if weight.kind == "state":
            return f"{key!r} is renewed by every batch, as in a batch norm"
    for key, about in graph.inputs.items():
        if about.dtype == "key":
            return f"the model draws random numbers for whole batches from {key!r}"

    def rows_of(number: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {
            k: jax.ShapeDtypeStruct((number, *v.shape[1:]), v.dtype)
            if k in pieces.keys
            else v
            for k, v in data.items()
        }

    half = _ROWS // 2
    try:
        whole, part = (
            jax.eval_shape(forward, params, rows_of(n)) for n in (_ROWS, half)
        )
    except (ShapeError, TypeError, ValueError) as e:
        return f"the model cannot take other numbers of rows: {str(e).splitlines()[0]}"
    for name in whole:
        shape = whole[name].shape
        if part[name].shape != (half, *shape[1:]) or shape[:1] != (_ROWS,):
            return f"the output {name!r} {shape} has no row for each row of the batch"

    with jax.ensure_compile_time_eval():  # numbers, even if a jit is being traced
        some = {**_numbers(params, 0), **_numbers(rows_of(_ROWS), 1)}
        weights = {k: some[k] for k in params}
        rows = {k: some[k] for k in data}
        cut = lambda at: {k: v[at] if k in pieces.keys else v for k, v in rows.items()}
        run = jax.jit(forward)
        made = run(weights, rows)
        parts = [run(weights, cut(at)) for at in (slice(half), slice(half, None))]
        for name, value in made.items():
            together = jnp.concatenate([p[name] for p in parts])
            if not _equal(value, together):
                return f"rows of a batch have a part in each other's output {name!r}"
    return ""


def _numbers(specs: Specs, seed: int) -> dict[str, Any]:
    """Numbers that most models take: floats in (0.1, 1), integers 0 and 1."""
    draws = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for key, spec in specs.items():
        if jnp.issubdtype(spec.dtype, jnp.floating):
            # Weights are kept small enough for deep models to stay finite.
            scale = 1 / math.sqrt(spec.shape[-1]) if seed == 0 and spec.shape else 1.0
            value = draws.uniform(0.1, 1, spec.shape) * scale
            sign = draws.choice([-1.0, 1.0], spec.shape) if seed == 0 else 1.0
            made[key] = jnp.asarray(value * sign, spec.dtype)
        else:
            made[key] = jnp.asarray(draws.integers(0, 2, spec.shape), spec.dtype)
    return made


def _equal(whole: Any, parts: Any) -> bool:
    coarse = jnp.issubdtype(whole.dtype, jnp.floating)
    share = max(1e-4, 16 * float(jnp.finfo(whole.dtype).eps)) if coarse else 0.0
    whole, parts = (np.asarray(a).astype(np.float64) for a in (whole, parts))
    if not np.isfinite(whole).all():
        return False  # nothing is shown by such numbers
    allowed = share * np.abs(whole).max(initial=0.0)
    return bool(np.abs(whole - parts).max(initial=0.0) <= allowed)


def cut(
    values: Mapping[str, Any], keys: tuple[str, ...], number: int
) -> dict[str, Any]:
    """Those of these keys as (pieces, rows of a piece, ...)."""
    return {
        k: v.reshape(number, v.shape[0] // number, *v.shape[1:])
        for k, v in values.items()
        if k in keys
    }


def piece_of(values: Specs, keys: tuple[str, ...], number: int) -> dict[str, Any]:
    """The shapes of one piece."""
    return {
        k: jax.ShapeDtypeStruct((v.shape[0] // number, *v.shape[1:]), v.dtype)
        if k in keys
        else v
        for k, v in values.items()
    }


def joined(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """(pieces, rows of a piece, ...) as (rows, ...)."""
    return {k: v.reshape(-1, *v.shape[2:]) for k, v in outputs.items()}


def outputs_in_pieces(
    forward: Callable[[Any, Any], dict[str, Any]], keys: tuple[str, ...], number: int
) -> Callable[[Any, Any], dict[str, Any]]:
    """`forward`, a piece at a time."""

    def run(params: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        rest = {k: v for k, v in data.items() if k not in keys}

        def step(carry: tuple[()], piece: Any) -> tuple[tuple[()], Any]:
            return carry, forward(params, {**rest, **piece})

        return joined(jax.lax.scan(step, (), cut(data, keys, number))[1])

    return run


def gradients_in_pieces(
    pull: Callable[[Any, Any, Any], tuple[Any, Any]],
    keys: tuple[str, ...],
    number: int,
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """From `pull(params, data, cotangents) -> (outputs, gradients)` the same in pieces.

    Gradients of the pieces are summed, in float32 at least.
    """

    def run(
        params: Mapping[str, Any], data: Mapping[str, Any], cotangents: Any
    ) -> tuple[Any, Any]:
        rest = {k: v for k, v in data.items() if k not in keys}

        def step(sums: Any, piece: Any) -> tuple[Any, Any]:
            outputs, grads = pull(params, {**rest, **piece[0]}, piece[1])
            add = lambda s, g: s + g.astype(s.dtype)
            return jax.tree.map(add, sums, grads), outputs

        wide = lambda p: jnp.zeros(
            p.shape, jnp.float32 if p.dtype.itemsize < 4 else p.dtype
        )
        zeros = {k: wide(p) for k, p in params.items()}
        pieces = cut(data, keys, number), cut(cotangents, tuple(cotangents), number)
        sums, outputs = jax.lax.scan(step, zeros, pieces)
        grads = {k: s.astype(params[k].dtype) for k, s in sums.items()}
        return joined(outputs), grads

    return run
