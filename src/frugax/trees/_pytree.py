"""`PyTree`: a type alias for any tree of containers and leaves, without JAX."""

from typing import Any, TypeAlias

# Not jaxtyping's alias, because that imports JAX, which `compress` and `tropical` must
# work without.
PyTree: TypeAlias = Any
