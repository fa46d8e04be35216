"""Weights before training, drawn by one compiled program."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PRNGKeyArray, Shaped

from frugax.models.graph import Fill, Normal, Weight


def draw(
    key: PRNGKeyArray,
    weights: Mapping[str, Weight],
    dtype: np.dtype,
    mesh: Mesh | None,
) -> dict[str, Shaped[Array, "..."]]:
    """Every weight by key.

    Args:
        key: a random key.
        weights: shape and start of each.
        dtype: of all of them.
        mesh: lay them out over this mesh from the start; None: on one device.
    """
    wanted = tuple(weights.items())
    if not wanted:
        return {}
    if mesh is None:
        return _draw(key, wanted, dtype)
    where = {name: split_weight(w.shape, mesh) for name, w in wanted}
    made = jax.jit(_numbers, static_argnums=(1, 2), out_shardings=where)
    return made(key, wanted, dtype)


def split_weight(shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Along the first dimension that the mesh's last axis divides; else copied."""
    axis = mesh.axis_names[-1]
    parts = mesh.shape[axis]
    spec: list[str | None] = [None] * len(shape)
    for i, length in enumerate(shape):
        if length and length % parts == 0:
            spec[i] = axis
            break
    return NamedSharding(mesh, PartitionSpec(*spec))


def _numbers(
    key: PRNGKeyArray, wanted: tuple[tuple[str, Weight], ...], dtype: np.dtype
) -> dict[str, Shaped[Array, "..."]]:
    # One long draw of each kind, cut in pieces: a draw for each array would compile
    # far longer. Drawn in float32 at least, so that all dtypes start alike.
    drawn = dtype if dtype.itemsize == 8 else jnp.float32
    total = {
        kind: sum(
            _size(w)
            for _, w in wanted
            if isinstance(w.init, Fill) is False
            and isinstance(w.init, Normal) is normal
        )
        for kind, normal in (("normal", True), ("uniform", False))
    }
    first, second = jax.random.split(key)
    pools = {
        "normal": jax.random.normal(first, (total["normal"],), drawn),
        "uniform": jax.random.uniform(second, (total["uniform"],), drawn),
    }
    at = {"normal": 0, "uniform": 0}
    made: dict[str, Array] = {}
    for name, weight in wanted:
        init = weight.init
        if isinstance(init, Fill):
            made[name] = jnp.full(weight.shape, init.value, dtype)
            continue
        kind = "normal" if isinstance(init, Normal) else "uniform"
        size = _size(weight)
        numbers = pools[kind][at[kind] : at[kind] + size].reshape(weight.shape)
        at[kind] += size
        if isinstance(init, Normal):
            numbers = init.std * numbers
        else:
            numbers = init.low + (init.high - init.low) * numbers
        made[name] = numbers.astype(dtype)
    return made


_draw = jax.jit(_numbers, static_argnums=(1, 2))


def _size(weight: Weight) -> int:
    size = 1
    for length in weight.shape:
        size *= length
    return size
