"""Read each argument's shape per device; refuse shards larger than a plan expects."""

import math
from typing import Any

import jax
from jax.core import Tracer


def example_shapes(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shapes of arguments, with the shardings of those on several devices."""
    # `eval_shape` also accepts tracers, so this works inside a `jit`, too.
    shapes = jax.eval_shape(lambda *given: given, *args)

    def place(leaf: Any, shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = _sharding(leaf)
        if sharding is None:
            return shape
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    return jax.tree.map(place, args, shapes)


def shard_shapes(args: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    """The shape of each array on one device; () if all are on a single device."""
    leaves = jax.tree.leaves(args)
    if all(_sharding(leaf) is None for leaf in leaves):
        return ()
    return tuple(map(_shard_shape, leaves))


def axis_devices(args: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """The number of devices over which each axis of each array is divided."""
    counts = lambda whole, part: whole // part if part else 1
    return [
        tuple(map(counts, getattr(leaf, "shape", ()), _shard_shape(leaf)))
        for leaf in jax.tree.leaves(args)
    ]


def check_shardings(
    planned: tuple[tuple[int, ...], ...], args: tuple[Any, ...]
) -> None:
    """Refuse arguments that hold more on each device than the plan was made for."""
    leaves = jax.tree_util.tree_leaves_with_path(args)
    # Inside of a `jit` XLA chooses shardings later, so nothing can be compared.
    if any(isinstance(leaf, Tracer) for _, leaf in leaves):
        return
    for shape, (path, leaf) in zip(planned, leaves, strict=False):
        found = _shard_shape(leaf)
        if math.prod(found) > math.prod(shape):
            raise ValueError(
                f"args{jax.tree_util.keystr(path)} has {found} on each device, but the "
                f"plan was made for {shape}: put it on the devices as planned "
                "(jax.device_put), or plan again for arguments that lie so."
            )


def _sharding(leaf: Any) -> Any:
    if isinstance(leaf, Tracer):
        return None
    sharding = getattr(leaf, "sharding", None)
    return sharding if sharding is not None and sharding.num_devices > 1 else None


def _shard_shape(leaf: Any) -> tuple[int, ...]:
    shape = tuple(getattr(leaf, "shape", ()))
    sharding = _sharding(leaf)
    return shape if sharding is None else tuple(sharding.shard_shape(shape))
