"""The gradient of a step: in its precision, over one batch or over parts of it."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from frugax.trees import PyTree

from ._precision import Precision, lowered


@dataclasses.dataclass(frozen=True)
class Objective:
    """A user's loss as what is differentiated: `objective(params, inputs)`.

    Gives the loss times the scale in float32, and beside it a dict of metrics with the
    loss itself among them, and what is carried.

    Attributes:
        loss: `loss(params, batch, carried, rest)` gives loss, metrics and carried.
        precision: what it computes in.
    """

    loss: Callable[..., tuple[Any, dict[str, Any], PyTree]]
    precision: Precision

    def __call__(
        self, params: PyTree, inputs: "Inputs"
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], PyTree]]:
        low, scale = self.precision, inputs.scale
        value, aux, carried = self.loss(
            lowered(params, low),
            lowered(inputs.batch, low),
            inputs.carried,
            inputs.rest,
        )
        if low != "f32":
            value = value.astype(jnp.float32)
        scaled = value if scale is None else value * scale
        return scaled, ({"loss": value, **aux}, carried)


class Inputs(NamedTuple):
    """What an objective takes beside the weights: nothing that is differentiated.

    Attributes:
        batch: what the loss takes.
        scale: the loss scale, or None.
        carried: what the loss changes itself, or None.
        rest: what else the model is made of, or None.
    """

    batch: PyTree
    scale: Any = None
    carried: PyTree = None
    rest: PyTree = None


def gradient(
    grad_fn: Callable[..., Any],
    params: PyTree,
    inputs: Inputs,
    *,
    parts: int,
    loop: bool = True,
) -> tuple[dict[str, jax.Array], PyTree, PyTree]:
    """Metrics, gradient and what is carried, over the batch at once or part by part.

    Args:
        grad_fn: gives `((scaled loss, (metrics, carried)), gradient)` for `params` and
            inputs.
        params: the weights.
        inputs: what it takes beside them.
        parts: micro-batches that the batch is cut into; gradients and metrics are
            their means, which for a loss that is a mean over examples is the same.
            What is carried goes from one to the next.
        loop: go through them in a compiled loop; otherwise in a Python one.
    """
    if parts == 1:
        (_, (metrics, carried)), grads = grad_fn(params, inputs)
        return metrics, grads, carried
    whole, cut = _cut(inputs.batch, parts)
    numbered = (jnp.arange(parts), cut)

    def one(so_far: PyTree, part: PyTree) -> tuple[PyTree, dict[str, jax.Array]]:
        sums, carried = so_far
        given = inputs._replace(batch=whole(*part), carried=carried)
        (_, (metrics, carried)), grads = grad_fn(params, given)
        return (jax.tree.map(jnp.add, sums, grads), carried), metrics

    so_far = (jax.tree.map(jnp.zeros_like, params), inputs.carried)
    if loop:
        (sums, carried), metrics = lax.scan(one, so_far, numbered)
    else:
        told: list[Any] = []
        for i in range(parts):
            so_far, said = one(so_far, jax.tree.map(lambda x, i=i: x[i], numbered))
            told.append(said)
        sums, carried = so_far
        metrics = jax.tree.map(lambda *xs: jnp.stack(xs), *told)
    mean = lambda x: x.mean(axis=0) if jnp.issubdtype(x.dtype, jnp.inexact) else x[-1]
    return (
        {k: mean(v) for k, v in metrics.items()},
        jax.tree.map(lambda g: g / parts, sums),
        carried,
    )


def micro_batch(batch: PyTree, parts: int) -> PyTree:
    """The first of the parts, for planning.

    Raises:
        ValueError: the batch cannot be cut so.
    """
    if parts == 1:
        return batch
    whole, cut = _cut(batch, parts)
    return whole(0, jax.tree.map(lambda x: x[0], cut))


def _cut(batch: PyTree, parts: int) -> tuple[Callable[[Any, PyTree], PyTree], PyTree]:
    """The batch's arrays with a leading axis of parts, and how a part becomes a batch.

    Arrays without axes belong to every part, but of a random key each has its own: the
    same noise in all of them would be less of it than was asked for.

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
            f"in all arrays: {named}. Random keys must be of jax.random.key, and what "
            "all parts share must be in static, in the model, or without axes."
        )
    length = lengths.pop()
    if length % parts:
        raise ValueError(
            f"accum={parts} does not divide the batch of {length}: take a batch of "
            f"{length - length % parts or parts} or {length + parts - length % parts}."
        )

    def whole(number: Any, part: list[Any]) -> PyTree:
        filled = [
            jax.random.fold_in(x, number) if _is_one_key(x) else x for x in leaves
        ]
        for i, x in zip(shaped, part, strict=True):
            filled[i] = x
        return jax.tree.unflatten(structure, filled)

    cut = [
        jnp.reshape(leaves[i], (parts, length // parts, *jnp.shape(leaves[i])[1:]))
        for i in shaped
    ]
    return whole, cut


def _is_one_key(x: Any) -> bool:
    is_key = jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
    return is_key and jnp.ndim(x) == 0
