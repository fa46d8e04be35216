"""In which precision a step computes, and the scale that keeps float16 from underflow.

Weights, optimiser state and updates stay in float32. The loss and its gradient are
computed in the lower precision.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from frugax.trees import PyTree

Precision: TypeAlias = Literal["f32", "bf16", "f16"]

COMPUTE = {"f32": None, "bf16": jnp.bfloat16, "f16": jnp.float16}
# Doubled after so many sound steps in a row, halved after one that is not
# (Micikevicius et al. 2018, ICLR, arXiv:1710.03740, section 3.2; the figures are those
# of the common implementations).
_PATIENCE = 2000
_FIRST, _LEAST, _MOST = 2.0**15, 1.0, 2.0**24


class LossScale(NamedTuple):
    """What a float16 loss is multiplied by, so that small gradients are not lost.

    Attributes:
        scale: the factor.
        sound: steps in a row whose gradients were finite.
    """

    scale: Float[Array, ""]
    sound: Int[Array, ""]


def first_scale(precision: Precision) -> LossScale | None:
    """The scale before the first step; None where none is needed."""
    if precision != "f16":
        return None
    return LossScale(jnp.float32(_FIRST), jnp.int32(0))


def next_scale(before: LossScale, *, finite: Bool[Array, ""]) -> LossScale:
    """The scale after a step whose gradients were finite, or not."""
    sound = jnp.where(finite, before.sound + 1, 0)
    grown = jnp.where(sound >= _PATIENCE, before.scale * 2, before.scale)
    scale = jnp.where(finite, grown, before.scale / 2)
    return LossScale(
        jnp.clip(scale, _LEAST, _MOST), jnp.where(sound >= _PATIENCE, 0, sound)
    )


def lowered(tree: PyTree, precision: Precision) -> PyTree:
    """The floating-point arrays of a tree in the precision that is computed in."""
    dtype = COMPUTE[precision]
    if dtype is None:
        return tree

    def low(x: Any) -> Any:
        is_float = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if is_float else x

    return jax.tree.map(low, tree)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every number of a tree is."""
    found = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]
    return jnp.stack(found).all() if found else jnp.bool_(True)
