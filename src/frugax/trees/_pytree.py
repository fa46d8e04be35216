"""The alias that annotates "any tree of containers and leaves"."""

from typing import Any, TypeAlias

# An alias of our own rather than jaxtyping's: that one imports JAX, which `compress`
# and `tropical` work without.
PyTree: TypeAlias = Any
