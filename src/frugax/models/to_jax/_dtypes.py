"""The JAX implementation of dtype casts and promotion, for the bodies of ops."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models.ops import as_dtype, int_dtype, is_floating, result_dtype

Array = Any  # a jax.Array, a tracer, or a Python number
_NUMBERS = (bool, int, float)


class Dtypes:
    """The dtype methods of the namespace.

    Attributes:
        float_dtype: dtype of a Python float, and the default of new arrays.
    """

    float_dtype: np.dtype

    as_dtype = staticmethod(as_dtype)

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

    def promote(
        self, tensors: Sequence[Array], *, to_float: bool = False
    ) -> tuple[Array, ...]:
        """Bring tensors to one dtype by `result_dtype`; see there."""
        values = list(tensors)
        for i, t in enumerate(values):
            if not (t is None or isinstance(t, jax.Array) or type(t) in _NUMBERS):
                values[i] = jnp.asarray(t)
        # Tracers count as jax.Array here as well, so this holds under jit and
        # eval_shape. Under `jax_numpy_dtype_promotion="strict"` jnp converts nothing by
        # itself.
        strong = {t.dtype for t in values if isinstance(t, jax.Array)}
        # By exact type: NumPy's float64 is a subclass of float, but is not weak.
        weak = {type(t) for t in values if type(t) in _NUMBERS}
        if not strong and not weak:
            return tuple(values)
        # A bool skips this shortcut: JAX does not treat Python bools as weak, so strict
        # promotion refuses them next to a float. `_promote_one` makes an int of it.
        if len(strong) == 1 and bool not in weak:
            (common,) = strong
            if is_floating(common) or not (to_float or weak):
                return tuple(values)  # the usual case: nothing to convert
        target = result_dtype(
            *strong, *weak, to_float=to_float, float_dtype=self.float_dtype
        )
        return tuple(self._promote_one(t, target, alone=not strong) for t in values)

    def _promote_one(self, t: Array, target: np.dtype, *, alone: bool) -> Array:
        if t is None:
            return None
        if isinstance(t, jax.Array):
            return self.cast(t, target)
        if alone:
            return jnp.asarray(t, target)
        # An int stays an int next to floats: x ** 2 is then one multiplication.
        if isinstance(t, bool) and target != np.bool_:
            return int(t)
        return t
