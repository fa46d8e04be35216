"""Tropical operations by JAX, for arrays of any library."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from frugax import tropical

from ._jax_bridge import JaxTropicalBridge
from ._jax_config import JaxConfigAdapter

Kind: TypeAlias = Literal["max", "min"]


class TropicalJAXEngine:
    """`frugax.tropical` on the coordinator's device; results come as they went in.

    Args:
        bridge: carries arrays to the device and back.
        settings: the width of numbers.
    """

    def __init__(self, bridge: JaxTropicalBridge, settings: JaxConfigAdapter) -> None:
        self._bridge, self._settings = bridge, settings

    def matmul(self, a: Any, b: Any, *, kind: Kind = "max") -> Any:
        """The tropical matrix product, `(n, k)` by `(k, m)`; see `tropical.matmul`."""
        return self._done(lambda x, y: tropical.matmul(x, y, kind=kind), a, b)

    def closure(self, d: Any, *, kind: Kind = "min") -> Any:
        """The best walks of any length, `(n, n)`; see `tropical.closure`."""
        return self._done(lambda x: tropical.closure(x, kind=kind), d)

    def polynomial(
        self,
        coefficients: Any,
        exponents: Any,
        points: Any,
        *,
        kind: Kind = "max",
    ) -> Any:
        """The best monomial at each point; see `tropical.polynomial`."""
        return self._done(
            lambda c, e, p: tropical.polynomial(c, e, p, kind=kind),
            coefficients,
            exponents,
            points,
        )

    def _done(self, operation: Callable[..., Any], *given: Any) -> Any:
        arrays = [self._bridge.to_jax(value) for value in given]
        with self._settings.applied():
            return self._bridge.like(operation(*arrays), given[0])
