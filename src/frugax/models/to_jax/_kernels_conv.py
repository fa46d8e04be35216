"""The JAX implementation of convolution and pooling ops, on channels-last data.

A convolution is frugax's own operation, `jaxprs.fast_convolution`. Outside of loops
XLA:CPU compiles it like `lax.conv_general_dilated`; inside a `scan` or `cond` it is 7
to 50 times faster, and it has derivatives in both modes. Pools reduce one axis at a
time, by the maximum or the sum of shifted copies: `lax.reduce_window` takes 2 to 7
times as long on CPU, and the gradient of its maximum 5 to 12 times.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from frugax.jaxprs import fast_convolution

Pads = Sequence[tuple[int, int]]
_AXES = "DHW"
# Wider windows would make the program of shifted copies too long.
_MAX_WINDOW = 16


class ConvolutionKernels:
    """Methods that `Kernels` inherits; sizes have one number for each spatial axis."""

    precision: Any

    def convolution(
        self,
        input: jax.Array,
        weight: jax.Array,
        stride: Sequence[int],
        padding: Pads,
        dilation: Sequence[int],
        groups: int,
    ) -> jax.Array:
        """Kernels (*window, in / groups, out) over (batch, *space, in)."""
        return self._run(
            input,
            weight,
            window_strides=tuple(stride),
            padding=tuple(padding),
            lhs_dilation=(1,) * len(stride),
            rhs_dilation=tuple(dilation),
            feature_group_count=groups,
        )

    def convolution_transpose(
        self,
        input: jax.Array,
        weight: jax.Array,
        stride: Sequence[int],
        crops: Pads,
        dilation: Sequence[int],
        groups: int,
    ) -> jax.Array:
        """A convolution's gradient in the data; (*window, out / g, in)."""
        *window, made, read = weight.shape
        space = range(len(window))
        # A transposed convolution is an ordinary one on data with zeros between
        # (lhs_dilation), with the kernel turned round and its channels exchanged by
        # group.
        kernel = lax.rev(weight, tuple(space))
        kernel = kernel.reshape(*window, made, groups, read // groups)
        kernel = lax.transpose(kernel, (*space, *(len(window) + i for i in (2, 1, 0))))
        reach = [step * (size - 1) for size, step in zip(window, dilation, strict=True)]
        pairs = zip(reach, crops, strict=True)
        return self._run(
            input,
            kernel.reshape(*window, read // groups, groups * made),
            window_strides=(1,) * len(window),
            padding=tuple((r - low, r - high) for r, (low, high) in pairs),
            lhs_dilation=tuple(stride),
            rhs_dilation=tuple(dilation),
            feature_group_count=groups,
        )

    def _run(
        self,
        data: jax.Array,
        kernel: jax.Array,
        *,
        padding: tuple[tuple[int, int], ...],
        feature_group_count: int,
        **steps: tuple[int, ...],
    ) -> jax.Array:
        flat = data.ndim == 3
        if flat:
            # A signal as an image of height 1 takes 0.7-0.8 of the time.
            data, kernel = lax.expand_dims(data, (1,)), lax.expand_dims(kernel, (0,))
            padding = ((0, 0), *padding)
            steps = {name: (1, *step) for name, step in steps.items()}
        out = fast_convolution(
            data,
            kernel,
            padding=padding,
            dimension_numbers=_channels_last(data.ndim - 2),
            feature_group_count=feature_group_count,
            precision=self.precision,
            **steps,
        )
        if flat:
            return lax.squeeze(out, (1,))
        return out

    def max_pool(
        self,
        input: jax.Array,
        window: Sequence[int],
        stride: Sequence[int],
        padding: Pads,
    ) -> jax.Array:
        """The largest of each window."""
        # Concrete, because lax.reduce_window recognises a maximum, and so its
        # derivative, only by a concrete -inf.
        lowest = np.array(-np.inf, input.dtype)
        if max(window) > _MAX_WINDOW:
            return _reduce_window(input, lowest, lax.max, window, stride, padding)
        return _fold_window(input, lowest, _first_largest, window, stride, padding)

    def sum_pool(
        self,
        input: jax.Array,
        window: Sequence[int],
        stride: Sequence[int],
        padding: Pads,
    ) -> jax.Array:
        """The sum of each window."""
        zero = np.zeros((), input.dtype)
        if max(window) > _MAX_WINDOW:
            return _reduce_window(input, zero, lax.add, window, stride, padding)
        return _fold_window(input, zero, lax.add, window, stride, padding)


def _channels_last(spatial: int) -> tuple[str, str, str]:
    axes = _AXES[-spatial:]
    return f"N{axes}C", f"{axes}IO", f"N{axes}C"


@jax.custom_jvp
def _first_largest(left: jax.Array, right: jax.Array) -> jax.Array:
    """The maximum; of equal values the left one gets the whole gradient, as in torch.

    `jnp.maximum` gives each a half, and a plain `where` takes 1.5x the forward time.
    """
    return lax.max(left, right)


@_first_largest.defjvp
def _first_largest_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    left, right = primals
    return lax.max(left, right), lax.select(left >= right, *tangents)


def _fold_window(
    x: jax.Array,
    empty: np.ndarray,
    fold: Callable[[jax.Array, jax.Array], jax.Array],
    window: Sequence[int],
    stride: Sequence[int],
    padding: Pads,
) -> jax.Array:
    """Reduce each window, axis by axis."""
    # The last axis comes first, so that the first of equal values in reading order
    # wins, as in torch.
    if any(pair != (0, 0) for pair in padding):
        x = lax.pad(x, empty, [(0, 0, 0), *((*p, 0) for p in padding), (0, 0, 0)])
    for axis in range(len(window), 0, -1):
        size, step = window[axis - 1], stride[axis - 1]
        last = (x.shape[axis] - size) // step * step
        shifted = (
            lax.slice_in_dim(x, i, i + last + 1, step, axis) for i in range(size)
        )
        x = functools.reduce(fold, shifted)
    return x


def _reduce_window(
    x: jax.Array,
    empty: np.ndarray,
    fold: Callable[..., Any],
    window: Sequence[int],
    stride: Sequence[int],
    padding: Pads,
) -> jax.Array:
    return lax.reduce_window(
        x,
        empty,
        fold,
        (1, *window, 1),
        (1, *stride, 1),
        [(0, 0), *padding, (0, 0)],
    )
