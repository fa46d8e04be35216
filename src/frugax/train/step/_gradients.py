"""Compute the gradient of the loss: mixed precision, loss scaling, micro-batches.

Weights, optimiser state and updates stay in float32. The loss and its gradient are
computed in the lower precision.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from frugax.trees import PyTree

Precision: TypeAlias = Literal["f32", "bf16", "f16"]

DTYPES = {"f32": None, "bf16": jnp.bfloat16, "f16": jnp.float16}
# Dynamic loss scaling (Micikevicius et al. 2018, ICLR, arXiv:1710.03740, section 3.2):
# doubled after a run of finite steps, halved after one that is not finite. The interval
# and the factors are those of the common implementations.
_GROWTH_INTERVAL = 2000
_FIRST_SCALE, _MIN_SCALE, _MAX_SCALE = 2.0**15, 1.0, 2.0**24


class LossScale(NamedTuple):
    """The factor of a float16 loss that keeps small gradients from underflowing.

    Attributes:
        scale: the factor.
        sound: number of consecutive steps whose gradients were finite.
    """

    scale: Float[Array, ""]
    sound: Int[Array, ""]


def first_scale(precision: Precision) -> LossScale | None:
    """Return the scale before the first step; None where no scale is needed."""
    if precision != "f16":
        return None
    return LossScale(jnp.float32(_FIRST_SCALE), jnp.int32(0))


def next_scale(before: LossScale, *, finite: Bool[Array, ""]) -> LossScale:
    """Return the scale after a step whose gradients were finite, or not."""
    sound = jnp.where(finite, before.sound + 1, 0)
    grows = sound >= _GROWTH_INTERVAL
    grown = jnp.where(grows, before.scale * 2, before.scale)
    scale = jnp.where(finite, grown, before.scale / 2)
    return LossScale(
        jnp.clip(scale, _MIN_SCALE, _MAX_SCALE), jnp.where(grows, 0, sound)
    )


def is_all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Return whether every number of a tree is finite."""
    found = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]
    return jnp.stack(found).all() if found else jnp.bool_(True)


class Aux(NamedTuple):
    """What an objective returns beside the number that is differentiated.

    Attributes:
        metrics: means over the batch by name, the unscaled loss among them.
        weights: the weights of those metrics that were given as `Weighted`.
        carried: the arrays that the loss changes.
    """

    metrics: dict[str, jax.Array]
    weights: dict[str, jax.Array]
    carried: PyTree


@dataclasses.dataclass(frozen=True)
class Objective:
    """The user's loss in the form that is differentiated: `objective(params, inputs)`.

    It returns the scaled loss in float32.
    """

    loss: Callable[..., tuple[dict[str, Any], PyTree]]
    precision: Precision

    def __call__(
        self, params: PyTree, inputs: "Inputs"
    ) -> tuple[Float[Array, ""], Aux]:
        found, carried = self.loss(
            _cast(params, self.precision),
            _cast(inputs.batch, self.precision),
            inputs.carried,
            inputs.rest,
        )
        metrics, weights = dict(found), {}
        for name, value in found.items():
            if isinstance(value, Weighted):
                wide = value.in_float32()
                metrics[name], weights[name] = wide.mean(), wide.weight
        if self.precision != "f32":
            # Before scaling: the first scale times 2 exceeds float16's 65504.
            metrics["loss"] = metrics["loss"].astype(jnp.float32)
        scaled = metrics["loss"]
        if inputs.scale is not None:
            scaled = scaled * inputs.scale
        return scaled, Aux(metrics, weights, carried)


class Inputs(NamedTuple):
    """The arguments of an objective that are not differentiated."""

    batch: PyTree
    scale: Any = None
    carried: PyTree = None
    rest: PyTree = None


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


def compute_gradient(
    grad_fn: Callable[..., Any],
    params: PyTree,
    inputs: Inputs,
    *,
    parts: int,
) -> tuple[dict[str, jax.Array], PyTree, PyTree]:
    """Return metrics, gradient and carried arrays, of the batch or of its parts."""
    if parts == 1:
        (_, aux), grads = grad_fn(params, inputs)
        return aux.metrics, _conjugate(grads), aux.carried
    assemble, stacked = _stack_parts(inputs.batch, parts)
    numbered = (jnp.arange(parts), stacked)

    def accumulate(totals: PyTree, part: PyTree) -> tuple[PyTree, Aux]:
        sums, carried = totals
        part_inputs = inputs._replace(batch=assemble(*part), carried=carried)
        (_, aux), grads = grad_fn(params, part_inputs)
        if "loss" in aux.weights:
            weight = aux.weights["loss"]
            grads = jax.tree.map(lambda g: g * weight.astype(g.dtype), grads)
        sums = jax.tree.map(jnp.add, sums, grads)
        return (sums, aux.carried), aux._replace(carried=None)

    # In float32 as the weights are: the cast to a lower precision is part of the loss,
    # so each part's gradient arrives in float32, and their sum loses nothing.
    totals = (jax.tree.map(jnp.zeros_like, params), inputs.carried)
    (sums, carried), found = lax.scan(accumulate, totals, numbered)
    # Without weights, the mean over parts is that over the batch if each row counts as
    # much as another; `check_parts` looks whether it does.
    weights = found.weights.get("loss")
    if weights is None:
        grads = jax.tree.map(lambda g: g / parts, sums)
    else:
        whole = _avoid_zero(weights.sum())
        grads = jax.tree.map(lambda g: g / whole.astype(g.dtype), sums)
    return average_parts(found), _conjugate(grads), carried


def average_parts(found: Aux) -> dict[str, jax.Array]:
    """Return the metrics of a batch, from those of its parts along the first axis."""
    averages = {name: _average(values) for name, values in found.metrics.items()}
    for name, weights in found.weights.items():
        total = (found.metrics[name] * weights).sum()
        averages[name] = Weighted(total, weights.sum()).mean()
    return averages


def evaluate_parts(
    objective: Objective, params: PyTree, inputs: Inputs, *, parts: int
) -> Aux:
    """Evaluate the objective on each part of a batch, one after the other."""
    assemble, stacked = _stack_parts(inputs.batch, parts)

    def evaluate(part: PyTree) -> Aux:
        _, aux = objective(params, inputs._replace(batch=assemble(*part)))
        return aux._replace(carried=None)

    return lax.map(evaluate, (jnp.arange(parts), stacked))


def deal_rows(batch: PyTree, parts: int) -> PyTree:
    """Reorder the rows of a batch: each part receives every `parts`-th of them."""

    def deal(x: Any) -> Any:
        if not jnp.ndim(x):
            return x
        shape = jnp.shape(x)
        rows = jnp.reshape(x, (shape[0] // parts, parts, *shape[1:]))
        return jnp.swapaxes(rows, 0, 1).reshape(shape)

    return jax.tree.map(deal, batch)


def _conjugate(grads: PyTree) -> PyTree:
    # Of a complex weight JAX returns the conjugate of the direction of steepest ascent
    # (autodiff cookbook, "Complex numbers and differentiation"); optax subtracts it.
    return jax.tree.map(lambda g: jnp.conj(g) if jnp.iscomplexobj(g) else g, grads)


def first_micro_batch(batch: PyTree, parts: int) -> PyTree:
    """Return the first of the parts, for planning."""
    if parts == 1:
        return batch
    assemble, stacked = _stack_parts(batch, parts)
    return assemble(0, jax.tree.map(lambda x: x[0], stacked))


def _cast(tree: PyTree, precision: Precision) -> PyTree:
    """Cast the floating-point arrays of a tree to the precision of the computation."""
    dtype = DTYPES[precision]
    if dtype is None:
        return tree

    def cast(x: Any) -> Any:
        is_float = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if is_float else x

    return jax.tree.map(cast, tree)


# Shape of `values`: one entry for each part.
def _average(values: jax.Array) -> jax.Array:
    if jnp.issubdtype(values.dtype, jnp.inexact):
        return values.mean(axis=0)
    return values[-1]  # counters and flags have no mean


# Stack the parts of a batch; also return how a part becomes a batch again.
#
# Every part shares the arrays without axes, except random keys: each part has its own,
# because the same dropout mask in all parts would be less noise than intended.
def _stack_parts(
    batch: PyTree, parts: int
) -> tuple[Callable[[Any, PyTree], PyTree], PyTree]:
    flat, structure = jax.tree_util.tree_flatten_with_path(batch)
    leaves = [leaf for _, leaf in flat]
    with_axes = [i for i, leaf in enumerate(leaves) if jnp.ndim(leaf)]
    if not with_axes:
        raise ValueError(
            f"accum={parts} divides the batch along its first axis, but no array of "
            "the batch has one."
        )
    lengths = {jnp.shape(leaves[i])[0] for i in with_axes}
    if len(lengths) > 1:
        shapes = ", ".join(
            f"batch{jax.tree_util.keystr(flat[i][0])} {jnp.shape(leaves[i])}"
            for i in with_axes[:4]
        )
        raise ValueError(
            f"accum={parts} divides the batch along its first axis, whose length must "
            f"be the same in all arrays: {shapes}. Random keys must be of "
            "jax.random.key; values that all parts share belong in static, in the "
            "model, or in arrays without axes."
        )
    length = lengths.pop()
    if rest := length % parts:
        nearest = [str(n) for n in (length - rest, length - rest + parts) if n]
        raise ValueError(
            f"accum={parts} does not divide the batch of {length}: take a batch of "
            f"{' or '.join(nearest)}."
        )

    def assemble(number: Any, part: list[Any]) -> PyTree:
        filled = [
            jax.random.fold_in(x, number) if _is_single_key(x) else x for x in leaves
        ]
        for i, x in zip(with_axes, part, strict=True):
            filled[i] = x
        return jax.tree.unflatten(structure, filled)

    size = length // parts
    stacked = [
        jnp.reshape(leaves[i], (parts, size, *jnp.shape(leaves[i])[1:]))
        for i in with_axes
    ]
    return assemble, stacked


def _is_single_key(x: Any) -> bool:
    is_key = jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
    return is_key and jnp.ndim(x) == 0
