"""`calibrate`: measure how errors in each weight change a JAX model's outputs."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from frugax.trees import PyTree, named_leaves

from .search import Calibration, ChannelMoments

# Gram matrices of more channels than this take longer than the gradients themselves.
_MAX_CHANNELS = 2048
# Of both kinds, in all.
_MAX_GRAM_BYTES = 2 << 30


def calibrate(
    apply_fn: Callable[[PyTree, Any], PyTree],
    params: PyTree,
    batches: Iterable[Any],
    *,
    held_out: Iterable[Any] = (),
    draws: int = 4,
    seed: int = 0,
) -> Calibration:
    """Measure how a JAX model's outputs change with errors in each of its tensors.

    To first order, independent errors in the weights change the outputs by a squared
    error of the trace of `J^T J` for each tensor, where J is the Jacobian of the
    outputs. With normal v the square of `J^T v` estimates it: one backward pass for
    each draw, and not one forward pass for each tensor as `sensitivity_of` takes.

    For a matrix W in `x @ W` the products of rows of `J^T v` estimate the second
    moments of x, each input weighted by its effect on the outputs. They say which rows
    need finer steps, and how later rows can make up for the errors of earlier ones.
    Products of columns do so for matrices in `W @ x`. Of more than 2,048 rows or
    columns only the mean squares are kept.

    Args:
        apply_fn: a function of `(params, batch)` that JAX can differentiate; its
            outputs are a tree of float arrays, logits rather than a loss.
        params: the weights that will be compressed.
        batches: inputs like those to come, without labels; at least one. Some dozens of
            batches or draws in all are enough.
        held_out: other inputs, on which `SizeBudget(output_error=...)` is measured.
        draws: random directions for each batch; more are less noisy.
        seed: of the directions.

    Returns:
        The calibration, for `plan(..., sensitivity=)`. It is a mapping from the name of
        each float tensor to one number >= 0, the mean square of `J^T v`.

    Raises:
        ValueError: there are no batches, no draws, or gradients that are not finite.

    References:
        Hutchinson 1990, Commun. Statist. Simul. Comput. 19(2) (the estimate).

    >>> import jax.numpy as jnp
    >>> weights = {"used": jnp.ones((2, 2)), "unused": jnp.ones((2, 2))}
    >>> found = calibrate(lambda w, x: x @ w["used"], weights, [jnp.ones((3, 2))])
    >>> found["used"] > 0, found["unused"]
    (True, 0.0)
    """
    import jax
    import jax.numpy as jnp

    if draws < 1:
        raise ValueError(f"calibrate needs draws >= 1, got {draws}.")
    is_float = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, params))
    named = [name for name, _ in named_leaves(params)]
    floats = [i for i, leaf in enumerate(leaves) if is_float(leaf) and leaf.size]
    names = [named[i] for i in floats]
    with_grams = _choose_grams({named[i]: leaves[i].shape for i in floats})

    def outputs(values: list[jax.Array], batch: Any) -> PyTree:
        every = list(leaves)
        for i, value in zip(floats, values, strict=True):
            every[i] = value
        return apply_fn(structure.unflatten(every), batch)

    def moments(name: str, gradient: jax.Array, *, columns: bool) -> jax.Array:
        rows = gradient.reshape(-1, gradient.shape[-1])
        if columns:
            rows = gradient.reshape(len(gradient), -1).T
        if (name, columns) in with_grams:
            return rows @ rows.T / rows.shape[1]
        return jnp.mean(jnp.square(rows), axis=1)

    @jax.jit
    def add_moments(
        total: Any, values: list[jax.Array], batch: Any, key: jax.Array
    ) -> Any:
        out, pull_back = jax.vjp(lambda values: outputs(values, batch), values)
        flat, of_outputs = jax.tree.flatten(out)
        keys = jax.random.split(key, len(flat))
        normal = [
            jax.random.normal(k, o.shape, o.dtype)
            for k, o in zip(keys, flat, strict=True)
        ]
        (found,) = pull_back(of_outputs.unflatten(normal))
        found = {
            name: g.astype(jnp.float32) for name, g in zip(names, found, strict=True)
        }
        squares = {name: jnp.mean(jnp.square(g)) for name, g in found.items()}
        views = [
            {n: moments(n, g, columns=columns) for n, g in found.items() if g.ndim > 1}
            for columns in (False, True)
        ]
        energy = sum(jnp.sum(jnp.square(o.astype(jnp.float32))) for o in flat)
        now = energy, squares, *views
        return now if total is None else jax.tree.map(jnp.add, total, now)

    total, count, seen = None, 0, []
    key = jax.random.key(seed)
    values = [leaves[i] for i in floats]
    for batch in batches:
        seen.append(batch)
        for _ in range(draws):
            key, now = jax.random.split(key)
            total = add_moments(total, values, batch, now)
        count += draws
    if total is None:
        raise ValueError("calibrate was given no batches.")
    energy, squares, *views = jax.device_get(jax.tree.map(lambda x: x / count, total))
    sensitivity = {name: float(squares[name]) for name in names}
    if not np.isfinite(list(sensitivity.values())).all():
        for i, leaf in zip(floats, values, strict=True):
            if not jnp.isfinite(leaf).all():
                raise ValueError(
                    f"{named[i]!r} has NaN or infinite numbers: calibrate needs "
                    "weights that are finite."
                )
        # Once more, to find the first batch of those that are at fault.
        for number, batch in enumerate(seen):
            _, squares, *_ = add_moments(None, values, batch, key)
            bad = [name for name, square in squares.items() if not np.isfinite(square)]
            if bad:
                raise ValueError(
                    f"batches[{number}] gives {bad[0]!r} a gradient that is not "
                    "finite: leave that batch out, or look for NaN in it."
                )
        raise ValueError(
            "the squares of gradients overflow float32: scale the outputs."
        )
    sizes = {named[i]: leaves[i].size for i in floats}
    rows, columns = (
        {name: _describe(found, count, sizes[name]) for name, found in view.items()}
        for view in views
    )

    forward = jax.jit(outputs)

    def error_on(batches: list[Any]) -> Callable[[Mapping[str, np.ndarray]], float]:
        def measure(arrays: Mapping[str, np.ndarray]) -> float:
            changed = [jnp.asarray(arrays[name]) for name in names]
            error = energy = 0.0
            for batch in batches:
                pairs = zip(
                    jax.tree.leaves(forward(values, batch)),
                    jax.tree.leaves(forward(changed, batch)),
                    strict=True,
                )
                for right, found in pairs:
                    right = np.asarray(right, np.float64)
                    gap = np.asarray(found, np.float64) - right
                    error += float(np.vdot(gap, gap))
                    energy += float(np.vdot(right, right))
            return math.sqrt(error / energy) if energy else math.nan

        return measure

    kept = list(held_out)
    return Calibration(
        sensitivity=sensitivity,
        rows=rows,
        columns=columns,
        output_error=error_on(kept) if kept else None,
        calibrated_error=error_on(seen),
        energy=float(energy),
    )


def _choose_grams(shapes: Mapping[str, tuple[int, ...]]) -> set[tuple[str, bool]]:
    """Return which rows (False) and columns (True) have Gram matrices: the smallest."""
    wanted = [
        (math.prod(shape[1:] if columns else shape[:-1]), name, columns)
        for name, shape in shapes.items()
        for columns in (False, True)
        if len(shape) > 1
    ]
    chosen: set[tuple[str, bool]] = set()
    room = _MAX_GRAM_BYTES
    for channels, name, columns in sorted(wanted):
        room -= 4 * channels**2
        if channels <= _MAX_CHANNELS and room >= 0:
            chosen.add((name, columns))
    return chosen


def _describe(found: np.ndarray, count: int, size: int) -> ChannelMoments:
    each = size // max(1, len(found))
    if found.ndim == 1:
        return ChannelMoments(found.astype(np.float64), None, count * each)
    return ChannelMoments(np.diag(found).astype(np.float64), found, count * each)
