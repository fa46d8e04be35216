"""The JAX implementation of elementwise operations that are not jnp's own."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.models.ops import is_floating

from ._dtypes import Array, Dtypes


class Elementwise(Dtypes):
    """The elementwise methods of the namespace, where jnp's own differ."""

    def power(self, left: Array, right: Array) -> Array:
        """`left` to the power of `right`; the gradient at 0^0 is 0, with jnp's NaN."""
        # The derivative in the exponent is x^y log(x), which is NaN at 0. Python
        # numbers as exponents are constants and need no such care.
        arrays = isinstance(left, jax.Array) and isinstance(right, jax.Array)
        if arrays and is_floating(self.dtype_of(right)):
            left = jnp.where((left == 0) & (right == 0), 1, left)  # 1^0 is 1 as well
        return jnp.power(left, right)

    def floor_divide(self, left: Array, right: Array) -> Array:
        """`left` / `right`, rounded down; integers by 0 give 0, as NumPy does."""
        return self._by_divisor(jnp.floor_divide, left, right)

    def remainder(self, left: Array, right: Array) -> Array:
        """Remainder of floor_divide, with the sign of `right`; integers by 0 give 0."""
        return self._by_divisor(jnp.remainder, left, right)

    def _by_divisor(self, f: Callable[..., Any], left: Array, right: Array) -> Array:
        traced = isinstance(right, jax.Array)
        if not traced or is_floating(self.dtype_of(right)):
            if not traced and right == 0 and not is_floating(self.dtype_of(left)):
                return jnp.zeros_like(left)
            return f(left, right)
        # The divisor is replaced before the division, because the result of an integer
        # division by 0 is implementation-defined in XLA.
        zero = right == 0
        return jnp.where(zero, 0, f(left, jnp.where(zero, 1, right)))

    def absolute(self, x: Array) -> Array:
        """|x|, with gradient 0 at 0 as in torch, where jnp.abs has 1."""
        if is_floating(self.dtype_of(x)):
            # jnp.sign has the derivative 0, so that of the product is sign(x).
            return x * jnp.sign(x)
        return jnp.abs(x)

    def clip(self, x: Array, low: Any = None, high: Any = None) -> Array:
        """`x` within the bounds; the gradient is 0 at and beyond them."""
        dtype = self.dtype_of(x)
        # clamp has no open ends, so a missing bound becomes one that changes nothing.
        # Integers have no infinity and take the limits of their dtype.
        least, most = (-math.inf, math.inf)
        if not is_floating(dtype):
            limits = jnp.iinfo(dtype)
            least, most = int(limits.min), int(limits.max)
        if low is None:
            low = least
        if high is None:
            high = most
        # lax.clamp rather than jnp.clip, whose gradient at a bound is a half.
        return lax.clamp(np.asarray(low, dtype), x, np.asarray(high, dtype))

    def gelu(self, x: Array, *, approximate: bool = False) -> Array:
        """Exact by erf, or approximate by tanh."""
        if approximate:
            return jax.nn.gelu(x, True)
        # jax.nn.gelu(x, False) uses erfc, which is more accurate below -4, where gelu
        # vanishes, and a third slower on a CPU. torch uses erf too.
        return x * ((lax.erf(x * math.sqrt(0.5)) + 1) * 0.5)
