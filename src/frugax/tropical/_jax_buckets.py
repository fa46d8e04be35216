"""Run JAX programs on arrays padded to bucketed sizes, so that few shapes compile.

XLA compiles a program for each shape, which takes seconds on a busy machine. Arrays on
a CPU are padded by NumPy, which compiles nothing (nor does `device_put`, while
`jnp.asarray` does); elsewhere that would be a copy from the device and back, so only
the shapes given are compiled there.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Num

# The longest axis that is padded: larger matrices take longer to multiply than to
# compile.
LONGEST = 512


def size_is_free(a: Num[jax.Array, "..."], longest: int = LONGEST) -> bool:
    """Whether an array can be padded without a compilation or a change of devices."""
    if isinstance(a, Tracer) or max(a.shape, default=0) > longest or not a.size:
        return False
    return [device.platform for device in a.devices()] == ["cpu"]


def padded_size(size: int, least: int = 8) -> int:
    """Return the bucket of a size: a power of two, or three quarters of one from 24.

    One stays one: a vector is a matrix of one row.
    """
    if size == 1:
        return 1
    power = max(least, 1 << (size - 1).bit_length())
    return power * 3 // 4 if power > 16 and size <= power * 3 // 4 else power


def reshape(a: Num[jax.Array, "..."], shape: tuple[int, ...]) -> jax.Array:
    """Change the shape; JAX would compile for each."""
    if a.shape == shape:
        return a
    if size_is_free(a):
        return jax.device_put(np.asarray(a).reshape(shape))
    return a.reshape(shape)


def run(
    program: Callable[..., Any],
    signature: str,
    *arrays: jax.Array,
    kind: str,
    lengths: tuple[int, ...] = (),
    fill: Mapping[str, Any] | None = None,
    longest: int = LONGEST,
) -> Any:
    """Apply a compiled program to each batch, padded to buckets where that is free.

    Args:
        program: takes the arrays, the lengths and `kind`.
        signature: its axes, as in `numpy.vectorize`; the axes before them broadcast.
            "b" is an axis of batches too.
        arrays: the arguments.
        kind: the semiring.
        lengths: what else the program takes, such as the true lengths of axes.
        fill: the value that pads an axis; by default its last entry is repeated.
        longest: arrays with a longer axis are not padded.
    """
    inputs, outputs = (
        [axes.split(",") for axes in re.findall(r"\(([^)]*)\)", side)]
        for side in signature.split("->")
    )
    ranks = [a.ndim - len(axes) for a, axes in zip(arrays, inputs, strict=True)]
    if not all(size_is_free(a, longest) for a in arrays):
        if not any(ranks):
            return program(*arrays, *lengths, kind)
        # Equal ranks also where a program forbids JAX to promote them.
        rank = max(a.ndim for a in arrays)
        ranked = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in arrays]
        of_one = lambda *one: program(*one, *lengths, kind)
        return jnp.vectorize(of_one, signature=signature)(*ranked)
    sizes: dict[str, int] = {}
    for a, axes, rank in zip(arrays, inputs, ranks, strict=True):
        sizes |= zip(axes, a.shape[rank:], strict=True)
    batch = np.broadcast_shapes(
        *(a.shape[:rank] for a, rank in zip(arrays, ranks, strict=True))
    )
    padded: list[jax.Array] = []
    for a, axes, rank in zip(arrays, inputs, ranks, strict=True):
        host = np.asarray(a)
        if batch:
            # All batches as one axis, of which copies do not matter either.
            host = np.broadcast_to(host, batch + a.shape[rank:])
            host = host.reshape(-1, *a.shape[rank:])
        for i, axis in enumerate(["", *axes] if batch else axes):
            length = host.shape[i]
            # Batches are loops: two cost a quarter of eight.
            size = padded_size(length, least=2 if axis in ("", "b") else 8)
            # Not `np.pad`, which takes longer than a small product.
            if size != length and fill and axis in fill:
                shape = (*host.shape[:i], size - length, *host.shape[i + 1 :])
                more = np.full(shape, fill[axis], host.dtype)
                host = np.concatenate([host, more], axis=i)
            elif size != length:
                host = host.take(np.minimum(np.arange(size), length - 1), axis=i)
        padded.append(jax.device_put(host))
    axes = (0,) * len(arrays) + (None,) * len(lengths)
    call = _of_batches(program, kind, axes) if batch else program
    found = call(*padded, *lengths, *([] if batch else [kind]))
    several = len(outputs) > 1
    parts: list[jax.Array] = []
    for part, axes in zip(found if several else [found], outputs, strict=True):
        host = np.asarray(part)
        if batch:
            host = host[: math.prod(batch)].reshape(*batch, *host.shape[1:])
        ends = (slice(sizes.get(axis)) for axis in axes if axis)
        parts.append(jax.device_put(host[(..., *ends)]))
    return tuple(parts) if several else parts[0]


@functools.cache
def _of_batches(program: Any, kind: str, axes: tuple[int | None, ...]) -> Any:
    """Return the compiled program of batches; it stays, as XLA's programs do."""
    of_one = lambda *one: program(*one, kind)
    return jax.jit(jax.vmap(of_one, in_axes=axes))
