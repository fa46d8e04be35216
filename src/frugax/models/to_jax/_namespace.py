"""`JaxNamespace`: the array functions `xp` that bodies of ops call, in JAX.

Its methods have NumPy's names and rules. Ops bring their arrays to one dtype before, so
that jnp accepts them under its strictest settings too, and a traced body is as small as
if written by hand.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.models.aten import evaluate
from frugax.models.ops import FLOAT_DTYPE, as_dtype

from ._arrays import Array
from ._kernels import Kernels


class JaxNamespace(Kernels):
    """The operations of JAX that bodies of ops use.

    Attributes:
        float_dtype: dtype of a Python float, and the default of new arrays.
        precision: of matrix products and convolutions; None for JAX's default.
    """

    def __init__(
        self, float_dtype: np.dtype = FLOAT_DTYPE, precision: Any = None
    ) -> None:
        self.float_dtype = as_dtype(float_dtype)
        self.precision = precision

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """JAX's own function, where it needs nothing else to follow NumPy's rules."""
        modules = (jnp, jax.nn, lax, jnp.linalg)
        found = next((m for m in modules if hasattr(m, name)), None)
        if found is None or name.startswith("_"):
            raise AttributeError(f"JaxNamespace has no {name!r}.")
        return getattr(found, name)

    def rules(self) -> Any:
        """Operands of different ranks broadcast, whatever the caller demands of jnp."""
        return jax.numpy_rank_promotion("allow")

    def scope(self, name: str) -> Any:
        """Group operations under `name` in a profiler."""
        return jax.named_scope(name)

    def scan(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        carry: Any,
        xs: Any,
        *,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """Run `carry, y = step(carry, x)` along the first axis; carry and all y."""
        return lax.scan(step, carry, xs, reverse=reverse)

    def aten(
        self,
        function: str,
        tensors: Sequence[Array],
        arguments: tuple[Any, ...],
        named: Sequence[tuple[str, Any]],
    ) -> Any:
        """An operation of torch's ATen library; see the op `aten`."""
        return evaluate(self, function, tensors, arguments, named)
