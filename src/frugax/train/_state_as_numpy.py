"""A state as NumPy arrays by place, and back, bit for bit."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._processes import on_host, put
from ._state import TrainState


def to_numpy(state: TrainState) -> dict[str, np.ndarray]:
    """Every leaf on the host, by its place; Orbax cannot hold empty ones.

    In a run of several processes all must call this.
    """
    flat = jax.tree_util.tree_leaves_with_path(state)
    named = {_name(path): _pack(on_host(_raw(leaf))) for path, leaf in flat}
    return {name: array for name, array in named.items() if array.size}


def from_numpy(arrays: Mapping[str, np.ndarray], like: TrainState) -> TrainState:
    """The state again, where `like` is.

    Args:
        arrays: what `to_numpy` gave.
        like: for structure, types and devices; its values are not looked at.
    """

    def build(path: Any, leaf: Any) -> jax.Array:
        raw = jax.eval_shape(_raw, leaf)
        # A copy: XLA may not write over memory that NumPy owns, and steps donate.
        value = jnp.array(_unpack(arrays.get(_name(path)), raw))
        if _is_key(leaf):
            # Only an array of keys can be asked for its implementation.
            impl = jax.random.key_impl(jnp.empty((), leaf.dtype))
            value = jax.random.wrap_key_data(value, impl=impl)
        sharding = getattr(leaf, "sharding", None)
        return value if sharding is None else put(value, sharding)

    return jax.tree_util.tree_map_with_path(build, like)


def _pack(array: np.ndarray) -> np.ndarray:
    """NumPy's own dtypes as they are; bfloat16, int4, float8... as their bytes.

    Orbax can hold some of these and not others (no uint4 in 0.12).
    """
    own = array.dtype.isbuiltin == 1
    return array if own else np.frombuffer(array.tobytes(), np.uint8)


def _unpack(packed: np.ndarray | None, like: jax.ShapeDtypeStruct) -> np.ndarray:
    if packed is None:
        return np.zeros(like.shape, like.dtype)
    if packed.dtype == like.dtype:
        return packed
    return np.frombuffer(packed.tobytes(), like.dtype).reshape(like.shape)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """Numbers as they are, random keys as the numbers in them."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path)
