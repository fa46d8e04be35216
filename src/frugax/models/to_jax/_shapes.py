"""The JAX implementation of reshaping, joining, indexing and sorting, for ops."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from ._dtypes import Array, Dtypes


class Shapes(Dtypes):
    """The methods of the namespace that move entries and compute nothing."""

    concat = staticmethod(jnp.concatenate)

    def getitem(self, x: Array, key: tuple[Any, ...]) -> Array:
        """x[key], for ints, slices, `...` and None."""
        return x[key]

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

    def scatter_add(
        self, x: Array, indices: Array, updates: Array, axis: int = 0
    ) -> Array:
        """`x` with slices added at `indices`, as often as an index is there."""
        # JAX drops updates out of range by default, which the op's rule demands; an
        # error is impossible in a compiled program.
        return x.at[(slice(None),) * (axis % x.ndim) + (indices,)].add(updates)

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
