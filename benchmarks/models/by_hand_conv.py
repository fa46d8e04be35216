"""The convolutional net by hand: layouts, ways to pool, ways to convolve."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .contestant import Arrays
from .nets import Conv
from .variant import Params, Variant


def by_window(spatial: tuple[int, int]) -> Callable[[jax.Array], jax.Array]:
    """2x2 max-pooling as JAX has it."""
    window = tuple(2 if axis in spatial else 1 for axis in range(4))

    def pooled(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")

    return pooled


def by_blocks(spatial: tuple[int, int]) -> Callable[[jax.Array], jax.Array]:
    """2x2 max-pooling as a maximum over two short axes."""

    def pooled(x: jax.Array) -> jax.Array:
        shape: list[int] = []
        axes: list[int] = []
        for axis, size in enumerate(x.shape):
            if axis in spatial:
                axes.append(len(shape) + 1)
                shape += [size // 2, 2]
            else:
                shape.append(size)
        return x.reshape(shape).max(tuple(axes))

    return pooled


def by_halves(spatial: tuple[int, int]) -> Callable[[jax.Array], jax.Array]:
    """2x2 max-pooling as the larger of two strided slices, one axis after the other."""

    def pooled(x: jax.Array) -> jax.Array:
        for axis in spatial:
            even = lax.slice_in_dim(x, 0, None, 2, axis)
            x = jnp.maximum(even, lax.slice_in_dim(x, 1, None, 2, axis))
        return x

    return pooled


def by_library(layout: str) -> Callable[..., jax.Array]:
    kernel = "OIHW" if layout == "NCHW" else "HWIO"

    def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
        spec = (layout, kernel, layout)
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=spec)

    return convolved


def by_patches(x: jax.Array, w: jax.Array) -> jax.Array:
    """A 3x3 convolution, NHWC, as one product of nine shifted copies."""
    _, h, wide, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifts = itertools.product(range(3), repeat=2)
    copies = [padded[:, i : i + h, j : j + wide] for i, j in shifts]
    return jnp.concatenate(copies, -1) @ w.reshape(-1, w.shape[-1])


def conv(
    net: Conv,
    *,
    layout: str = "NHWC",
    pool: Callable[..., Any] = by_window,
    convolved: Callable[..., jax.Array] | None = None,
) -> Variant:
    """A convolutional net, in one layout of images."""
    first = layout == "NCHW"
    convolved = convolved or by_library(layout)
    pooled = pool((2, 3) if first else (1, 2))
    by_channel = (lambda b: b[:, None, None]) if first else (lambda b: b)

    def forward(params: Params, x: jax.Array) -> jax.Array:
        for i in range(net.depth):
            y = convolved(x, params[f"{i}.weight"]) + by_channel(params[f"{i}.bias"])
            x = pooled(jax.nn.relu(y))
        return x.reshape(net.batch, -1) @ params["head.weight"] + params["head.bias"]

    def turned(arrays: Arrays, axes: Iterable[int], head: Callable[..., Any]) -> Arrays:
        made = {
            k: v.transpose(tuple(axes)) if v.ndim == 4 else v for k, v in arrays.items()
        }
        return made | {"head.weight": head(made["head.weight"])}

    channels, height, width = net.last
    if first:
        load = unload = lambda a: turned(a, range(4), np.transpose)
        return Variant(forward, load, unload)
    return Variant(
        forward,
        load=lambda a: turned(
            a,
            (2, 3, 1, 0),
            lambda w: (
                w.reshape(-1, channels, height, width)
                .transpose(2, 3, 1, 0)
                .reshape(-1, net.classes)
            ),
        ),
        unload=lambda a: turned(
            a,
            (3, 2, 0, 1),
            lambda w: (
                w.reshape(height, width, channels, -1)
                .transpose(3, 2, 0, 1)
                .reshape(net.classes, -1)
            ),
        ),
        data=lambda x: x.transpose(0, 2, 3, 1).copy(),
    )


def convs(net: Conv) -> dict[str, Variant]:
    return {
        "NHWC, reduce_window": conv(net),
        "NHWC, pool by blocks": conv(net, pool=by_blocks),
        "NHWC, pool by halves": conv(net, pool=by_halves),
        "NHWC, patches, halves": conv(net, pool=by_halves, convolved=by_patches),
        "NCHW, reduce_window": conv(net, layout="NCHW"),
    }
