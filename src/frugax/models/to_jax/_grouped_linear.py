"""Grouped matrix multiplication: each group of rows by the weight of its own expert.

`lax.ragged_dot` on CPU and GPU multiplies all rows by all weights and masks the result,
which is the cost that a sparse mixture of experts avoids. Here rows are cut into blocks
that belong to one group each (Gale et al. 2022, arXiv:2211.15841), one product a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# The most rows in a block: a product of that many uses a core well.
_MOST_ROWS = 128


def _blocks(counts: jax.Array, rows: int) -> tuple[int, tuple[Any, Any, Any]]:
    """The rows of a block; of each block its group, its first row and its size.

    The number of blocks is static, the most that any counts need; those to spare have
    no rows and begin behind the last.
    """
    groups = counts.shape[0]
    used = min(groups, rows)
    mean = max(rows // groups, 1)
    size = min(_MOST_ROWS, 1 << (mean - 1).bit_length())
    number = used + (rows - used) // size
    per_group = (counts + size - 1) // size
    ends = jnp.cumsum(per_group)
    block = jnp.arange(number, dtype=counts.dtype)
    owner = jnp.searchsorted(ends, block, side="right").astype(counts.dtype)
    group = jnp.minimum(owner, groups - 1)
    within = (block - (ends - per_group)[group]) * size
    first = (jnp.cumsum(counts) - counts)[group] + within
    is_used = owner < groups
    first = jnp.where(is_used, first, rows)
    left = jnp.where(is_used, jnp.clip(counts[group] - within, 0, size), 0)
    return size, (group, first, left)


def _multiply(x: jax.Array, y: jax.Array, axes: Any, precision: Any) -> jax.Array:
    return lax.dot_general(x, y, (axes, ((), ())), precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def grouped_linear(
    input: jax.Array, weight: jax.Array, counts: jax.Array, axis: int, precision: Any
) -> jax.Array:
    """Rows times the weight of their group, contracted over this axis of the weight."""
    rows = input.shape[0]
    size, blocks = _blocks(counts, rows)
    padded = jnp.pad(input, ((0, size), (0, 0)))
    out = jnp.zeros((rows + size, weight.shape[3 - axis]), input.dtype)

    def step(out: jax.Array, block: Any) -> tuple[jax.Array, None]:
        group, first, _ = block
        x = lax.dynamic_slice_in_dim(padded, first, size)
        y = _multiply(x, weight[group], ((1,), (axis - 1,)), precision)
        # Rows behind the group's last are overwritten by the block of the next group.
        return lax.dynamic_update_slice_in_dim(out, y, first, 0), None

    return lax.scan(step, out, blocks)[0][:rows]


def _forward(
    input: jax.Array, weight: jax.Array, counts: jax.Array, axis: int, precision: Any
) -> tuple[jax.Array, Any]:
    out: Any = grouped_linear(input, weight, counts, axis, precision)
    return out, (input, weight, counts)


def _backward(axis: int, precision: Any, saved: Any, pulled: jax.Array) -> Any:
    input, weight, counts = saved
    size, blocks = _blocks(counts, input.shape[0])
    padded = [jnp.pad(x, ((0, size), (0, 0))) for x in (pulled, input)]
    if axis == 1:
        padded.reverse()

    # One weight's gradient at a time is added in place. The derivative of the loop
    # above would add one of the size of all weights in each block.
    def step(total: jax.Array, block: Any) -> tuple[jax.Array, None]:
        group, first, left = block
        y, x = (lax.dynamic_slice_in_dim(p, first, size) for p in padded)
        y = jnp.where(jnp.arange(size)[:, None] < left, y, 0)
        product = _multiply(y, x, ((0,), (0,)), precision)
        return total.at[group].add(product.astype(total.dtype)), None

    gradient = lax.scan(step, jnp.zeros_like(weight), blocks)[0]
    back = grouped_linear(pulled, weight, counts, 3 - axis, precision)
    return back, gradient, np.zeros(counts.shape, jax.dtypes.float0)


grouped_linear.defvjp(_forward, _backward)
