"""Which dtype a JAX array has, and what brings several to one."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models.ops import as_dtype, is_floating, result_dtype

Array = Any  # a jax.Array, a tracer, or a Python number


class Dtypes:
    """The dtype methods of the namespace.

    Attributes:
        float_dtype: what a float is when nothing else says so.
    """

    float_dtype: np.dtype

    as_dtype = staticmethod(as_dtype)

    def dtype_of(self, x: Array) -> np.dtype:
        """The dtype of an array, or what a Python number becomes."""
        if type(x) in (bool, int, float):
            return result_dtype(type(x), float_dtype=self.float_dtype)
        return np.dtype(x.dtype)

    def asarray(self, value: Any, dtype: Any = None) -> jax.Array:
        """An array of numbers, in `dtype` if given."""
        if dtype is None and type(value) in (bool, int, float):
            dtype = self.dtype_of(value)
        return jnp.asarray(value, None if dtype is None else self._known(dtype))

    def cast(self, x: Array, dtype: Any) -> jax.Array:
        """The same values in another dtype."""
        wanted = self._known(dtype)
        if not isinstance(x, jax.Array):
            return jnp.asarray(x, wanted)
        return x if x.dtype == wanted else x.astype(wanted)

    def _known(self, dtype: Any) -> np.dtype:
        wanted = as_dtype(dtype)
        if jax.dtypes.canonicalize_dtype(wanted) != wanted:
            raise ValueError(
                f"{wanted} needs 64-bit numbers, which JAX has switched off. Use "
                "JaxBackend(dtype=float64), or ask for the 32-bit dtype."
            )
        return wanted

    def promote(
        self, tensors: Sequence[Array], *, to_float: bool = False
    ) -> tuple[Array, ...]:
        """Bring tensors to one dtype by `result_dtype`; see there.

        Args:
            tensors: arrays, Python numbers (they stay what they are beside an array,
                as JAX takes them for weak) or None.
            to_float: whether integers become `float_dtype`.
        """
        given = [
            t
            if t is None or isinstance(t, jax.Array) or type(t) in (bool, int, float)
            else jnp.asarray(t)
            for t in tensors
        ]
        strong = {t.dtype for t in given if isinstance(t, jax.Array)}
        # By exact type: NumPy's float64 is a Python float too, and not weak.
        weak = {type(t) for t in given if type(t) in (bool, int, float)}
        if not strong and not weak:
            return tuple(given)
        if len(strong) == 1 and bool not in weak:
            (wanted,) = strong
            if is_floating(wanted) or not (to_float or weak):
                return tuple(given)  # nothing to do, which is how it mostly is
        wanted = result_dtype(
            *strong, *weak, to_float=to_float, float_dtype=self.float_dtype
        )
        return tuple(self._promoted(t, wanted, alone=not strong) for t in given)

    def _promoted(self, t: Array, wanted: np.dtype, *, alone: bool) -> Array:
        if t is None:
            return None
        if isinstance(t, jax.Array):
            return t if t.dtype == wanted else t.astype(wanted)
        if alone:
            return jnp.asarray(t, wanted)
        # An int stays an int beside floats: x ** 2 is then one multiplication.
        return int(t) if isinstance(t, bool) and wanted != np.bool_ else t
