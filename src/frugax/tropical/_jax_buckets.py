"""Pad JAX arrays to bucketed sizes, so that tropical operations compile for few shapes.

XLA compiles a program for each shape, which takes seconds on a busy machine. Arrays on
a CPU are padded by NumPy, which compiles nothing; elsewhere that would be a copy from
the device and back, so only the shapes given are compiled there.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Num

# Powers of two and one size between each, so that a side grows by half at most; large
# matrices take longer to multiply than to compile.
_BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def size_is_free(a: Num[jax.Array, "..."]) -> bool:
    """Whether an array can be padded without a compilation or a change of devices."""
    if isinstance(a, Tracer) or max(a.shape, default=0) > _BUCKETS[-1] or not a.size:
        return False
    return [device.platform for device in a.devices()] == ["cpu"]


def padded_size(size: int) -> int:
    """Return the bucket of a size, which is at most the largest."""
    return next(bucket for bucket in _BUCKETS if bucket >= size)


def pad_edges(
    a: Num[jax.Array, "n m"], rows: int, columns: int
) -> Num[jax.Array, "{rows} {columns}"]:
    """Repeat the last row and the last column."""
    if a.shape == (rows, columns):
        return a
    more = ((0, rows - a.shape[0]), (0, columns - a.shape[1]))
    return jnp.asarray(np.pad(np.asarray(a), more, mode="edge"))
