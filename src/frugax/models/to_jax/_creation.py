"""The JAX implementation of array creation and random draws, for the bodies of ops."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models.ops import drawing_dtype, largest_below

from ._dtypes import Array, Dtypes


class Creation(Dtypes):
    """The methods of the namespace that need only a shape, or a random key."""

    def zeros(self, shape: Any, dtype: Any = None, *, like: Any = None) -> jax.Array:
        """An array of zeros; `like` matters in torch only."""
        return jnp.zeros(tuple(shape), self._check_dtype(dtype or self.float_dtype))

    def ones(self, shape: Any, dtype: Any = None, *, like: Any = None) -> jax.Array:
        """An array of ones; `like` matters in torch only."""
        return jnp.ones(tuple(shape), self._check_dtype(dtype or self.float_dtype))

    def full(
        self, shape: Any, value: Any, dtype: Any = None, *, like: Any = None
    ) -> jax.Array:
        """An array of one value; `like` matters in torch only."""
        dtype = self._check_dtype(dtype or self.dtype_of(value))
        return jnp.full(tuple(shape), value, dtype)

    def arange(
        self,
        start: Any,
        stop: Any = None,
        step: Any = 1,
        dtype: Any = None,
        *,
        like: Any = None,
    ) -> jax.Array:
        """Evenly spaced numbers; `int_dtype` if all three are ints."""
        if stop is None:
            start, stop = 0, start
        if dtype is None:
            dtype = self.int_dtype
            # jnp.arange alone would follow JAX's global flag for 64-bit numbers.
            if any(isinstance(v, float) for v in (start, stop, step)):
                dtype = self.float_dtype
        return jnp.arange(start, stop, step, self._check_dtype(dtype))

    def lengths(self, shape: Any) -> jax.Array:
        """An integer for each length, which may be symbolic while JAX traces."""
        return jnp.stack([jnp.asarray(n, self.int_dtype) for n in shape])

    def eye(
        self, rows: Any, columns: Any = None, k: int = 0, dtype: Any = None
    ) -> jax.Array:
        """Ones on the k-th diagonal."""
        return jnp.eye(rows, columns, k, self._check_dtype(dtype or self.float_dtype))

    def random_uniform(
        self, key: Array, shape: Any, low: Any, high: Any, dtype: np.dtype
    ) -> Array:
        """Uniform in [low, high)."""
        wide = drawing_dtype(dtype)
        low, high = (np.asarray(v, wide) for v in (low, high))
        drawn = jax.random.uniform(_as_key(key), tuple(shape), wide, low, high)
        if wide == dtype:
            return drawn
        return jnp.minimum(drawn.astype(dtype), largest_below(high, dtype))

    def random_normal(self, key: Array, shape: Any, dtype: np.dtype) -> Array:
        """Standard normal."""
        drawn = jax.random.normal(_as_key(key), tuple(shape), drawing_dtype(dtype))
        return drawn.astype(dtype)

    def bernoulli(self, key: Array, p: float, shape: Any) -> Array:
        """True with probability p."""
        return jax.random.bernoulli(_as_key(key), p, tuple(shape))

    def random_integers(
        self, key: Array, shape: Any, low: int, high: int, dtype: np.dtype
    ) -> Array:
        """Uniform integers in [low, high)."""
        return jax.random.randint(_as_key(key), tuple(shape), low, high, dtype)

    def fold_in(self, key: Array, index: Any) -> Array:
        """Derive a key from each number."""
        return jax.random.fold_in(_as_key(key), index)

    def split_key(self, key: Array, count: int = 2) -> tuple[Array, ...]:
        """Split a key."""
        return tuple(jax.random.split(_as_key(key), count))


def _as_key(key: Array) -> Array:
    """A key, or that of a seed: a whole number without axes, as on torch."""
    if isinstance(key, int):
        return jax.random.key(key)
    if jnp.issubdtype(key.dtype, jnp.integer) and not key.shape:
        return jax.random.key(key)
    return key
