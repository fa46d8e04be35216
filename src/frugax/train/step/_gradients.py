"""Compute the gradient of the loss: mixed precision, loss scaling, micro-batches.

Weights, optimiser state and updates stay in float32. The loss and its gradient are
computed in the lower precision.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from frugax.trees import PyTree

from ._micro_batches import PartResult, Weighted, accumulate

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
    """Outputs of an objective beside the number that is differentiated.

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


def compute_gradient(
    grad_fn: Callable[..., Any],
    params: PyTree,
    inputs: Inputs,
    *,
    parts: int,
) -> tuple[dict[str, jax.Array], PyTree, PyTree]:
    """Return metrics, gradient and carried arrays, of the batch or of its parts."""

    def compute(batch: PyTree, carried: PyTree) -> PartResult:
        of_part = inputs._replace(batch=batch, carried=carried)
        (_, aux), grads = grad_fn(params, of_part)
        return PartResult(aux.metrics, aux.weights, grads, aux.carried)

    # Gradients are added in float32 as the weights are: the cast to a lower precision
    # is part of the loss, so each part's gradient arrives in float32.
    found = accumulate(compute, inputs.batch, inputs.carried, like=params, parts=parts)
    return found.metrics, _conjugate(found.grads), found.carried


def _conjugate(grads: PyTree) -> PyTree:
    # Of a complex weight JAX returns the conjugate of the direction of steepest ascent
    # (autodiff cookbook, "Complex numbers and differentiation"); optax subtracts it.
    return jax.tree.map(lambda g: jnp.conj(g) if jnp.iscomplexobj(g) else g, grads)


def _cast(tree: PyTree, precision: Precision) -> PyTree:
    """Cast the floating-point arrays of a tree to the precision of the computation."""
    dtype = DTYPES[precision]
    if dtype is None:
        return tree

    def cast(x: Any) -> Any:
        is_float = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if is_float else x

    return jax.tree.map(cast, tree)
