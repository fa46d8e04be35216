"""The gradient of a step: in its precision, over one batch or over parts of it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frugax.typing import PyTree

from ._precision import Precision, lowered


@dataclasses.dataclass(frozen=True)
class Objective:
    """A user's loss as what is differentiated: `objective(params, (batch, scale))`.

    Gives the loss times the scale in float32, and a dict of metrics with the loss
    itself among them.

    Attributes:
        loss: the user's function.
        extra: what it takes after parameters and batch: the static argument, if any.
        has_aux: whether it reports metrics beside the loss.
        precision: what it computes in.
    """

    loss: Callable[..., Any]
    extra: tuple[Any, ...]
    has_aux: bool
    precision: Precision

    def __call__(
        self, params: PyTree, inputs: tuple[PyTree, Any]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        batch, scale = inputs
        low = self.precision
        given = self.loss(lowered(params, low), lowered(batch, low), *self.extra)
        value, aux = given if self.has_aux else (given, {})
        if low != "f32":
            value = value.astype(jnp.float32)
        scaled = value if scale is None else value * scale
        return scaled, {"loss": value, **aux}


def gradient(
    grad_fn: Callable[..., Any],
    params: PyTree,
    batch: PyTree,
    scale: Any,
    *,
    parts: int,
    loop: bool = True,
) -> tuple[dict[str, jax.Array], PyTree]:
    """Metrics and gradient, over the batch at once or part after part.

    Args:
        grad_fn: gives `((scaled loss, metrics), gradient)` for `params` and `(batch,
            scale)`.
        params: the weights.
        batch: what the loss takes.
        scale: the loss scale, or None.
        parts: micro-batches that the batch is cut into; gradients and metrics are
            their means, which for a loss that is a mean over examples is the same.
        loop: go through them in a compiled loop; otherwise in a Python one.
    """
    if parts == 1:
        (_, metrics), grads = grad_fn(params, (batch, scale))
        return metrics, grads
    whole, cut = _cut(batch, parts)

    def one(sums: PyTree, part: PyTree) -> tuple[PyTree, dict[str, jax.Array]]:
        (_, metrics), grads = grad_fn(params, (whole(part), scale))
        return jax.tree.map(jnp.add, sums, grads), metrics

    sums = jax.tree.map(jnp.zeros_like, params)
    if loop:
        sums, metrics = lax.scan(one, sums, cut)
    else:
        told: list[Any] = []
        for i in range(parts):
            sums, said = one(sums, jax.tree.map(lambda x, i=i: x[i], cut))
            told.append(said)
        metrics = jax.tree.map(lambda *xs: jnp.stack(xs), *told)
    mean = lambda x: x.mean(axis=0) if jnp.issubdtype(x.dtype, jnp.inexact) else x[-1]
    return (
        {k: mean(v) for k, v in metrics.items()},
        jax.tree.map(lambda g: g / parts, sums),
    )


def micro_batch(batch: PyTree, parts: int) -> PyTree:
    """The first of the parts, for planning.

    Raises:
        ValueError: the batch cannot be cut so.
    """
    if parts == 1:
        return batch
    whole, cut = _cut(batch, parts)
    return whole(jax.tree.map(lambda x: x[0], cut))


def _cut(batch: PyTree, parts: int) -> tuple[Callable[[PyTree], PyTree], PyTree]:
    """The batch's arrays with a leading axis of parts, and how a part becomes a batch.

    Arrays without axes belong to every part.

    Raises:
        ValueError: arrays differ in the length of their first axis, or it cannot be
            divided.
    """
    leaves, structure = jax.tree.flatten(batch)
    paths = [
        jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(batch)
    ]
    shaped = [i for i, x in enumerate(leaves) if jnp.ndim(x)]
    if not shaped:
        raise ValueError(
            f"accum={parts} cuts the batch along its first axis, but it holds no array "
            "that has one."
        )
    lengths = {jnp.shape(leaves[i])[0] for i in shaped}
    if len(lengths) > 1:
        named = ", ".join(f"batch{paths[i]} {jnp.shape(leaves[i])}" for i in shaped[:4])
        raise ValueError(
            f"accum={parts} cuts the batch along its first axis, which must be as long "
            f"in all arrays: {named}."
        )
    length = lengths.pop()
    if length % parts:
        raise ValueError(
            f"accum={parts} does not divide the batch of {length}: take a batch of "
            f"{length - length % parts or parts} or {length + parts - length % parts}."
        )

    def whole(part: list[Any]) -> PyTree:
        filled = list(leaves)
        for i, x in zip(shaped, part, strict=True):
            filled[i] = x
        return jax.tree.unflatten(structure, filled)

    cut = [
        jnp.reshape(leaves[i], (parts, length // parts, *jnp.shape(leaves[i])[1:]))
        for i in shaped
    ]
    return whole, cut
