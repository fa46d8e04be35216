"""Random keys of `jax.random.key`: their dtype is JAX's own, which no file has."""

import sys
from typing import Any

from ._partition import is_array


def is_random_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed random keys, or a stand-in for one."""
    return is_array(leaf) and str(leaf.dtype).startswith("key<")


def key_to_data(leaf: Any) -> Any:
    """Return the integers of random keys; any other leaf as it is.

    >>> import jax
    >>> key_to_data(jax.random.key(3)).tolist()
    [0, 3]
    """
    if not is_random_key(leaf):
        return leaf
    jax = sys.modules["jax"]
    if isinstance(leaf, jax.Array):
        return jax.random.key_data(leaf)
    return jax.eval_shape(jax.random.key_data, leaf)


def data_to_key(data: Any, like: Any) -> Any:
    """Return integers as random keys of the kind of `like`; as they are for others."""
    if not is_random_key(like):
        return data
    jax = sys.modules["jax"]
    # `like` may be a shape only, but key_impl needs an array of keys.
    impl = jax.random.key_impl(jax.numpy.empty((), like.dtype))
    return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=impl)
