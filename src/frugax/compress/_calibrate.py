"""`calibrate`: how sensitive a JAX model's outputs are to errors in each tensor."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from frugax.trees import PyTree, named_leaves


def calibrate(
    apply_fn: Callable[[PyTree, Any], PyTree],
    params: PyTree,
    batches: Iterable[Any],
    *,
    draws: int = 4,
    seed: int = 0,
) -> dict[str, float]:
    """Measure the sensitivity of a JAX model's outputs to each of its tensors.

    To first order, independent errors in the weights change the outputs by a squared
    error of the trace of `J^T J` for each tensor, where J is the Jacobian of the
    outputs. With normal v the square of `J^T v` estimates it: one backward pass for
    each draw, and not one forward pass for each tensor as `sensitivity_of` takes.

    Args:
        apply_fn: a function of `(params, batch)` that JAX can differentiate; its
            outputs are a tree of float arrays, logits rather than a loss.
        params: the weights that will be compressed.
        batches: inputs like those to come, without labels; at least one.
        draws: random directions for each batch; more are less noisy.
        seed: of the directions.

    Returns:
        One number >= 0 for each float tensor, for `plan(..., sensitivity=)`.

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
    floats = [i for i, leaf in enumerate(leaves) if is_float(leaf)]
    names = [named_leaves(params)[i][0] for i in floats]

    @jax.jit
    def squares(values: list[jax.Array], batch: Any, key: jax.Array) -> list[jax.Array]:
        def outputs(values: list[jax.Array]) -> PyTree:
            every = list(leaves)
            for i, value in zip(floats, values, strict=True):
                every[i] = value
            return apply_fn(structure.unflatten(every), batch)

        out, pull_back = jax.vjp(outputs, values)
        flat, of_outputs = jax.tree.flatten(out)
        keys = jax.random.split(key, len(flat))
        normal = [
            jax.random.normal(k, o.shape, o.dtype)
            for k, o in zip(keys, flat, strict=True)
        ]
        (found,) = pull_back(of_outputs.unflatten(normal))
        # The mean over a tensor: all of its numbers share one step.
        return [jnp.mean(jnp.square(g.astype(jnp.float32))) for g in found]

    total = np.zeros(len(floats))
    key, count = jax.random.key(seed), 0
    for batch in batches:
        for _ in range(draws):
            key, now = jax.random.split(key)
            total += np.asarray(squares([leaves[i] for i in floats], batch, now))
        count += draws
    if not count or not np.isfinite(total).all():
        what = "no batches" if not count else "gradients that are not finite"
        raise ValueError(f"calibrate was given {what}.")
    return dict(zip(names, (total / count).tolist(), strict=True))
