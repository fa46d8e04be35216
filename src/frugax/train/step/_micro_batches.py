"""Divide the batch of a step into micro-batches, and add up their gradients.

`accumulate` is the one place that decides which rows, random keys and weights a
micro-batch has.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from frugax.trees import PyTree, is_random_key


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weighted:
    """A mean as its numerator and denominator: a loss or a metric of unequal rows.

    A mean over valid tokens is `Weighted(sum of the valid ones, number of valid ones)`.
    Micro-batches of different weights then add up to the mean of the whole batch. A
    batch of weight 0 has the mean 0, and no gradient.

    Attributes:
        total: the weighted sum over the batch, a scalar.
        weight: the sum of the weights, a scalar >= 0. It is taken as a constant: no
            gradient passes through it.

    Example:
        >>> import jax.numpy as jnp
        >>> from frugax import train
        >>> def loss(params, batch):
        ...     errors = (batch["x"] * params - batch["y"]) ** 2
        ...     valid = batch["valid"]
        ...     return train.Weighted((errors * valid).sum(), valid.sum())
    """

    total: Any
    weight: Any

    def in_float32(self) -> "Weighted":
        """The same as arrays of at least 32 bits, the weight without a gradient."""
        total, weight = map(jnp.asarray, (self.total, self.weight))
        is_wide = jnp.finfo(total.dtype).bits >= 32
        dtype = total.dtype if is_wide else jnp.float32
        return Weighted(total.astype(dtype), lax.stop_gradient(weight).astype(dtype))

    def mean(self) -> jax.Array:
        """Divide the total by the weight."""
        return self.total / _avoid_zero(self.weight)


def _avoid_zero(weight: jax.Array) -> jax.Array:
    return jnp.where(weight == 0, jnp.ones_like(weight), weight)


class PartResult(NamedTuple):
    """The result of one part of a batch, or of all parts together.

    Attributes:
        metrics: means over the rows by name, the loss among them.
        weights: the weights of those metrics that were given as `Weighted`.
        grads: the gradient of the loss; () where it is not computed.
        carried: the arrays that the loss changes; each part receives those of the part
            before it.
    """

    metrics: dict[str, jax.Array]
    weights: dict[str, jax.Array]
    grads: PyTree = ()
    carried: PyTree = None


def accumulate(
    compute: Callable[[PyTree, PyTree], PartResult],
    batch: PyTree,
    carried: PyTree = None,
    *,
    like: PyTree,
    parts: int,
) -> PartResult:
    """Compute a gradient part after part of the batch; return that of the batch.

    It equals the gradient of the whole batch for a loss that is a mean over rows, or a
    `Weighted` one. `check_parts` looks whether a loss is.

    Args:
        compute: the result of a part, from its batch and the carried arrays.
        batch: the arrays are divided along their first axis. Arrays without axes are
            shared, and each part folds its number into a single random key: the same
            dropout mask in all parts would be less noise than intended.
        carried: the arrays that the first part receives.
        like: a tree of arrays with the shapes of the gradient.
        parts: the number of parts.

    Raises:
        ValueError: the batch cannot be divided into so many parts.
    """
    if parts == 1:
        return compute(batch, carried)
    sums, carried, found = scan_parts(compute, batch, carried, like=like, parts=parts)
    weights = found.weights.get("loss")
    if weights is None:
        grads = jax.tree.map(lambda g: g / parts, sums)
    else:
        whole = _avoid_zero(weights.sum())
        grads = jax.tree.map(lambda g: g / whole.astype(g.dtype), sums)
    return PartResult(average_parts(found), {}, grads, carried)


def scan_parts(
    compute: Callable[[PyTree, PyTree], PartResult],
    batch: PyTree,
    carried: PyTree = None,
    *,
    like: PyTree = (),
    parts: int,
) -> tuple[PyTree, PyTree, PartResult]:
    """Return the summed gradients, the carried arrays, and the metrics of each part."""
    take_part = divide(batch, parts)

    def add(totals: tuple[PyTree, PyTree], number: jax.Array) -> tuple[Any, PartResult]:
        sums, carried = totals
        found = compute(take_part(number), carried)
        grads = found.grads
        if "loss" in found.weights:
            weight = found.weights["loss"]
            grads = jax.tree.map(lambda g: g * weight.astype(g.dtype), grads)
        sums = jax.tree.map(jnp.add, sums, grads)
        return (sums, found.carried), found._replace(grads=(), carried=None)

    zeros = jax.tree.map(jnp.zeros_like, like)
    (sums, carried), found = lax.scan(add, (zeros, carried), jnp.arange(parts))
    return sums, carried, found


def average_parts(found: PartResult) -> dict[str, jax.Array]:
    """Return the metrics of a batch, from those of its parts along the first axis."""
    averages = {name: _average(values) for name, values in found.metrics.items()}
    for name, weights in found.weights.items():
        total = (found.metrics[name] * weights).sum()
        averages[name] = Weighted(total, weights.sum()).mean()
    return averages


def divide(batch: PyTree, parts: int) -> Callable[[Any], PyTree]:
    """Return the function that takes a part of the batch by its number.

    A part has every `parts`-th row. Of a batch that is sharded along its rows, each
    device so holds some rows of every part, and none are moved.

    Raises:
        ValueError: the arrays differ in their first axis, or it is not divisible.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(batch)
    shapes = {
        jax.tree_util.keystr(path): jnp.shape(leaf)
        for path, leaf in flat
        if jnp.ndim(leaf)
    }
    if not shapes:
        raise ValueError(
            f"{parts} micro-batches divide a batch along the first axis of its arrays, "
            "but no array of this one has axes: pass arrays with a row for each "
            "example."
        )
    lengths = {shape[0] for shape in shapes.values()}
    if len(lengths) > 1:
        listed = ", ".join(f"batch{n} {s}" for n, s in list(shapes.items())[:4])
        raise ValueError(
            f"{parts} micro-batches divide a batch along the first axis of its arrays, "
            f"so all must have the same number of rows: {listed}. Make random keys "
            "with jax.random.key, and leave other values that the rows share to other "
            "arguments of the loss."
        )
    length = lengths.pop()
    if rest := length % parts:
        nearest = [str(n) for n in (length - rest, length - rest + parts) if n]
        raise ValueError(
            f"a batch of {length} rows cannot be divided into {parts} micro-batches: "
            f"take a batch of {' or '.join(nearest)}."
        )

    def take(leaf: Any, number: Any) -> Any:
        if _is_single_key(leaf):
            return jax.random.fold_in(leaf, number)
        if not jnp.ndim(leaf):
            return leaf
        rows = jnp.reshape(leaf, (length // parts, parts, *jnp.shape(leaf)[1:]))
        return lax.dynamic_index_in_dim(rows, number, axis=1, keepdims=False)

    def take_part(number: Any) -> PyTree:
        return structure.unflatten([take(leaf, number) for _, leaf in flat])

    return take_part


def first_part(batch: PyTree, parts: int) -> PyTree:
    """Return the shapes of a part, for planning.

    Raises:
        ValueError: as for `divide`.
    """
    take = lambda batch: batch if parts == 1 else divide(batch, parts)(0)
    return jax.eval_shape(take, batch)


def regroup_rows(batch: PyTree, parts: int) -> PyTree:
    """Reorder the rows of a batch, so that each part receives neighbours."""

    def regroup(x: Any) -> Any:
        if not jnp.ndim(x):
            return x
        shape = jnp.shape(x)
        rows = jnp.reshape(x, (parts, shape[0] // parts, *shape[1:]))
        return jnp.swapaxes(rows, 0, 1).reshape(shape)

    return jax.tree.map(regroup, batch)


def _is_single_key(x: Any) -> bool:
    """Return whether a leaf is one key of `jax.random.key`."""
    return is_random_key(x) and jnp.ndim(x) == 0


# Shape of `values`: one entry for each part.
def _average(values: jax.Array) -> jax.Array:
    if jnp.issubdtype(values.dtype, jnp.inexact):
        return values.mean(axis=0)
    return values[-1]  # counters and flags have no mean
