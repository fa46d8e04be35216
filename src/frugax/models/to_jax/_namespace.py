"""The array namespace `xp` of JAX: what the bodies of the op table are written over.

Its methods have NumPy's names and rules. Where jnp under its strictest settings would
refuse (ranks or dtypes that differ), the namespace says explicitly what is meant; where
they agree already it adds nothing, so a traced body is as small as written by hand.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from frugax.models.ops import FLOAT_DTYPE, as_dtype

from ._creation import Creation
from ._dtypes import Array
from ._elementwise import Elementwise
from ._kernels import Kernels
from ._products import Products
from ._reductions import Reductions
from ._shapes import Shapes


class JaxNamespace(Elementwise, Reductions, Shapes, Products, Creation, Kernels):
    """The operations of JAX, as bodies of ops see them.

    Attributes:
        float_dtype: what a float is when nothing else says so.
        precision: of matrix products and convolutions; None for JAX's default.
    """

    def __init__(
        self, float_dtype: np.dtype = FLOAT_DTYPE, precision: Any = None
    ) -> None:
        self.float_dtype = as_dtype(float_dtype)
        self.precision = precision

    def scope(self, name: str) -> Any:
        """A context whose operations a profiler shows under `name`."""
        return jax.named_scope(name)

    def stop_gradient(self, x: Array) -> Array:
        """`x`, constant for differentiation."""
        return lax.stop_gradient(x)

    def scan(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        carry: Any,
        xs: Any,
        *,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """Run `carry, y = step(carry, x)` along the first axis; give carry and all y.

        Args:
            step: one step; `carry`, `x` and `y` are arrays, or tuples of them.
            carry: what the first step is given.
            xs: arrays that all have the same first axis.
            reverse: whether to start at the end; the y stay in the order of the xs.
        """
        return lax.scan(step, carry, xs, reverse=reverse)
