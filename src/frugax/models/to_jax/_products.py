"""The JAX implementation of matrix products and linear algebra, for bodies of ops."""

from typing import Any

import jax.numpy as jnp

from ._dtypes import Array


class Products:
    """The linear algebra of the namespace.

    Attributes:
        precision: of matrix products; None for JAX's default.
    """

    # A float32 product on TPU uses bfloat16 passes by default, and on newer GPUs TF32
    # where that is allowed. This is the setting that changes it.
    precision: Any

    def matmul(self, left: Array, right: Array) -> Array:
        """Matrix product, stacked over leading axes."""
        return jnp.matmul(left, right, precision=self.precision)

    def einsum(self, equation: str, *tensors: Array) -> Array:
        """Sum of products by Einstein's convention."""
        return jnp.einsum(equation, *tensors, precision=self.precision)

    def tensordot(self, left: Array, right: Array, axes: Any = 2) -> Array:
        """Sum of products over the given axes of both."""
        return jnp.tensordot(left, right, axes, precision=self.precision)

    inverse = staticmethod(jnp.linalg.inv)
    determinant = staticmethod(jnp.linalg.det)
