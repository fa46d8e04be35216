"""Draw a JAX model's initial weights in one compiled program, sharded if on a mesh."""

import math
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
    """Draw every weight by key."""
    items = tuple(weights.items())
    if not items:
        return {}
    if mesh is None:
        return _draw(key, items, dtype)
    where = {name: split_weight(w.shape, mesh) for name, w in items}
    # out_shardings creates the weights split. Drawn on one device and moved afterwards,
    # a model larger than that device could not start.
    draw_split = jax.jit(_draw_all, static_argnums=(1, 2), out_shardings=where)
    return draw_split(key, items, dtype)


def split_weight(shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Split along the first dimension that the mesh's last axis divides, if any."""
    axis = mesh.axis_names[-1]
    parts = mesh.shape[axis]
    spec: list[str | None] = [None] * len(shape)
    # The first dimension: of a (out, in) weight the one that its product's output has,
    # so that the forward product needs no sum over devices.
    for i, length in enumerate(shape):
        if length and length % parts == 0:
            spec[i] = axis
            break
    return NamedSharding(mesh, PartitionSpec(*spec))


def _draw_all(
    key: PRNGKeyArray, items: tuple[tuple[str, Weight], ...], dtype: np.dtype
) -> dict[str, Shaped[Array, "..."]]:
    # One long draw of each kind, cut in pieces, because a draw for each array would
    # take far longer to compile. In float32 at least, so that all dtypes start alike.
    wide = np.promote_types(dtype, np.float32)
    total = {
        kind: sum(
            _size(w)
            for _, w in items
            if isinstance(w.init, Fill) is False
            and isinstance(w.init, Normal) is normal
        )
        for kind, normal in (("normal", True), ("uniform", False))
    }
    # One key for both pools would make normal weights a function of the uniform ones.
    first, second = jax.random.split(key)
    pools = {
        "normal": jax.random.normal(first, (total["normal"],), wide),
        "uniform": jax.random.uniform(second, (total["uniform"],), wide),
    }
    at = {"normal": 0, "uniform": 0}
    arrays: dict[str, Array] = {}
    for name, weight in items:
        init = weight.init
        if isinstance(init, Fill):
            arrays[name] = jnp.full(weight.shape, init.value, dtype)
            continue
        kind = "uniform"
        if isinstance(init, Normal):
            kind = "normal"
        size = _size(weight)
        numbers = pools[kind][at[kind] : at[kind] + size].reshape(weight.shape)
        at[kind] += size
        if isinstance(init, Normal):
            numbers = init.std * numbers
        else:
            numbers = init.low + (init.high - init.low) * numbers
        arrays[name] = numbers.astype(dtype)
    return arrays


# One jitted function for the module: its cache is keyed by names and shapes of the
# weights, so a second model of equal layers does not compile again.
_draw = jax.jit(_draw_all, static_argnums=(1, 2))


def _size(weight: Weight) -> int:
    return math.prod(weight.shape)
