"""The JAX implementation of dtype casts and promotion, for the bodies of ops."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models.ops import as_dtype, int_dtype, promote, result_dtype

Array = Any  # a jax.Array, a tracer, or a Python number
_NUMBERS = (bool, int, float)


class Dtypes:
    """The dtype methods of the namespace.

    Attributes:
        float_dtype: dtype of a Python float, and the default of new arrays.
    """

    float_dtype: np.dtype
    array_class = jax.Array  # tracers count as such as well

    as_dtype = staticmethod(as_dtype)
    promote = promote

    @property
    def int_dtype(self) -> np.dtype:
        """The dtype of indices and counts: as wide as the numbers of the backend."""
        return int_dtype(self.float_dtype)

    def dtype_of(self, x: Array) -> np.dtype:
        """Return the dtype of an array, or the one that a Python number becomes."""
        if type(x) in _NUMBERS:
            return result_dtype(type(x), float_dtype=self.float_dtype)
        return np.dtype(x.dtype)

    def asarray(self, value: Any, dtype: Any = None) -> jax.Array:
        """Convert numbers to an array, in `dtype` if given."""
        if dtype is None and type(value) in _NUMBERS:
            dtype = self.dtype_of(value)
        if dtype is not None:
            dtype = self._check_dtype(dtype)
        return jnp.asarray(value, dtype)

    def cast(self, x: Array, dtype: Any) -> jax.Array:
        """Convert the values to another dtype."""
        target = self._check_dtype(dtype)
        if not isinstance(x, jax.Array):
            return jnp.asarray(x, target)
        # astype would add an operation to the program even if the dtypes agree.
        if x.dtype == target:
            return x
        return x.astype(target)

    def _check_dtype(self, dtype: Any) -> np.dtype:
        checked = as_dtype(dtype)
        # JAX would give the 32-bit dtype with nothing but a warning.
        if jax.dtypes.canonicalize_dtype(checked) != checked:
            raise ValueError(
                f"{checked} needs 64-bit numbers, which JAX has switched off. Use "
                "JaxBackend(dtype=float64), or ask for the 32-bit dtype."
            )
        return checked
