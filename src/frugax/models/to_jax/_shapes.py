"""The JAX implementation of reshaping, joining, indexing and sorting, for ops."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ._dtypes import Array, Dtypes


class Shapes(Dtypes):
    """The methods of the namespace that move entries and compute nothing."""

    def reshape(self, x: Array, shape: Any) -> Array:
        """The same entries in another shape; one length may be -1."""
        return jnp.reshape(x, tuple(shape))

    def transpose(self, x: Array, axes: Any = None) -> Array:
        """The axes in another order, reversed by default."""
        return jnp.transpose(x, axes)

    def broadcast_to(self, x: Array, shape: Any) -> Array:
        """`x` repeated along axes of length 1 or missing ones in front."""
        return jnp.broadcast_to(x, tuple(shape))

    def concat(self, tensors: Sequence[Array], axis: int = 0) -> Array:
        """Join along an existing axis."""
        return jnp.concatenate(tuple(tensors), axis)

    def stack(self, tensors: Sequence[Array], axis: int = 0) -> Array:
        """Join along a new axis."""
        return jnp.stack(tuple(tensors), axis)

    def getitem(self, x: Array, key: tuple[Any, ...]) -> Array:
        """x[key], for ints, slices, `...` and None."""
        return x[key]

    swapaxes = staticmethod(jnp.swapaxes)
    moveaxis = staticmethod(jnp.moveaxis)
    squeeze = staticmethod(jnp.squeeze)
    expand_dims = staticmethod(jnp.expand_dims)
    flip = staticmethod(jnp.flip)
    roll = staticmethod(jnp.roll)
    tile = staticmethod(jnp.tile)
    repeat = staticmethod(jnp.repeat)

    def pad(
        self, x: Array, widths: Any, mode: str = "constant", value: Any = 0
    ) -> Array:
        """`x` with (before, after) more entries along each axis."""
        if mode == "constant":
            return jnp.pad(x, tuple(widths), mode=mode, constant_values=value)
        return jnp.pad(x, tuple(widths), mode=mode)

    # Indexing.

    def take(
        self, x: Array, indices: Array, axis: int | None = None, mode: str = "fill"
    ) -> Array:
        """Entries at `indices` along an axis."""
        return jnp.take(x, indices, axis, mode=mode)

    def take_along_axis(self, x: Array, indices: Array, axis: int = -1) -> Array:
        """One entry for each index, all other axes running along."""
        return jnp.take_along_axis(x, indices, axis)

    def scatter_add(
        self, x: Array, indices: Array, updates: Array, axis: int = 0
    ) -> Array:
        """`x` with slices added at `indices`, as often as an index is there."""
        # JAX drops updates out of range by default, which the op's rule demands; an
        # error is impossible in a compiled program.
        return x.at[(slice(None),) * (axis % x.ndim) + (indices,)].add(updates)

    def sort(self, x: Array, axis: int = -1, *, descending: bool = False) -> Array:
        """Sort; NaN counts as the largest."""
        return jnp.sort(x, axis, descending=descending)

    def argsort(self, x: Array, axis: int = -1, *, descending: bool = False) -> Array:
        """The indices that sort; equals keep their order."""
        order = jnp.argsort(x, axis, stable=True, descending=descending)
        return self.cast(order, self.int_dtype)

    def top_k(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k largest of the last axis in order, and their indices."""
        # lax.top_k takes the first of equal entries, as the op defines it. torch needs
        # a stable sort for that.
        values, indices = lax.top_k(x, k)
        return values, self.cast(indices, self.int_dtype)

    tril = staticmethod(jnp.tril)
    triu = staticmethod(jnp.triu)
    diagonal = staticmethod(jnp.diagonal)
