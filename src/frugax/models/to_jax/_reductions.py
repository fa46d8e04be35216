"""The JAX implementation of reductions, cumulative sums and softmax, for ops."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models.ops import drawing_dtype, is_floating, sum_dtype

from ._dtypes import Array, Dtypes

Axis = int | Sequence[int] | None


class Reductions(Dtypes):
    """The methods of the namespace that run along axes, where jnp's own differ."""

    def sum(self, x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Sum; short integers are counted in int32."""
        return jnp.sum(x, axis, keepdims=keepdims, dtype=self._sum_dtype(x))

    def prod(self, x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Product; short integers are multiplied in int32."""
        return jnp.prod(x, axis, keepdims=keepdims, dtype=self._sum_dtype(x))

    def cumsum(self, x: Array, axis: int | None = None) -> Array:
        """Running sum; of the flattened array without an axis."""
        return self._running(jnp.cumsum, x, axis)

    def cumprod(self, x: Array, axis: int | None = None) -> Array:
        """Running product; of the flattened array without an axis."""
        return self._running(jnp.cumprod, x, axis)

    def _running(
        self, function: Callable[..., Array], x: Array, axis: int | None
    ) -> Array:
        # jnp adds halves up in their own dtype here: a running total of 16 bits stops
        # to grow after a few hundred entries.
        dtype = self._sum_dtype(x) or drawing_dtype(self.dtype_of(x))
        total = function(x, axis, dtype=dtype)
        return self.cast(total, self._sum_dtype(x) or self.dtype_of(x))

    def _sum_dtype(self, x: Array) -> np.dtype | None:
        # None for floats, because jnp accumulates half precision in float32 by itself.
        dtype = self.dtype_of(x)
        if is_floating(dtype):
            return None
        return sum_dtype(dtype, self.float_dtype)

    def argmax(
        self, x: Array, axis: int | None = None, *, keepdims: bool = False
    ) -> jax.Array:
        """Index of the first maximum."""
        # jnp gives int64 indices with 64-bit numbers switched on.
        return self.cast(jnp.argmax(x, axis, keepdims=keepdims), self.int_dtype)

    def argmin(
        self, x: Array, axis: int | None = None, *, keepdims: bool = False
    ) -> jax.Array:
        """Index of the first minimum."""
        return self.cast(jnp.argmin(x, axis, keepdims=keepdims), self.int_dtype)
