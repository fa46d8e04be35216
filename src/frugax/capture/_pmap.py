"""`jax.pmap` as a jitted function, whose gradients can be planned.

Since JAX 0.10 `jax.pmap` is a `jax.jit` of a `jax.shard_map` over a mesh with one axis.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import pmap as _jax_pmap  # kept where `jax.pmap` is replaced
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from frugax.jaxprs import hides_frames_below, is_tracing


def jitted_pmap(
    make: Callable[..., Any], fun: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    """`jax.pmap(fun, **options)`, jitted by `make`.

    Args:
        make: makes a jitted function of a function and the options of `jax.jit`.
        fun: the function of one device.
        options: of `jax.pmap`.

    Returns:
        A function that is called as that of `jax.pmap` is. Among several processes it
        is that of `jax.pmap`.
    """
    mapped: Any = _jax_pmap(fun, **options)
    jitted = make(
        mapped,
        {
            "static_argnums": options.get("static_broadcasted_argnums", ()),
            "donate_argnums": options.get("donate_argnums", ()),
        },
    )
    rows = _Rows(options)

    def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        if is_tracing() or jax.process_count() > 1:
            return mapped, args, kwargs
        placed = rows.place(args, kwargs)
        # JAX's own error names what is wrong with the arguments.
        return (mapped, args, kwargs) if placed is None else (jitted, *placed)

    @hides_frames_below
    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen, args, kwargs = choose(args, kwargs)
        return chosen(*args, **kwargs)

    def lower(*args: Any, **kwargs: Any) -> Any:
        chosen, args, kwargs = choose(args, kwargs)
        return chosen.lower(*args, **kwargs)

    known: Any = call
    known.lower = lower
    return known


class _Rows:
    """Divides arguments over devices, one row for each, as `jax.pmap` does."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._axes = options.get("in_axes", 0)
        self._name = options.get("axis_name")
        static = options.get("static_broadcasted_argnums", ())
        self._static = {static} if isinstance(static, int) else {*static}
        self._devices: Any = options.get("devices")
        self._backend = options.get("backend")

    def place(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments on the devices; None if they are not divided alike."""
        mapped = [i for i in range(len(args)) if i not in self._static]
        given = [args[i] for i in mapped]
        axes = self._axes
        if isinstance(axes, Sequence):
            if len(axes) != len(args):
                return None
            axes = [axes[i] for i in mapped]
        try:
            axes = [*_broadcast(axes, given), *_broadcast(0, kwargs)]
        except ValueError:
            return None
        leaves, tree = jax.tree.flatten((given, kwargs))
        shapes = list(map(np.shape, leaves))
        if any(
            axis is not None and not 0 <= axis < len(shape)
            for axis, shape in zip(axes, shapes, strict=True)
        ):
            return None
        both = list(zip(axes, shapes, strict=True))
        counts = {shape[axis] for axis, shape in both if axis is not None}
        devices = self._devices or jax.devices(self._backend)
        if len(counts) != 1 or max(counts) > len(devices):
            return None
        mesh = Mesh(np.array(devices[: counts.pop()]), (self._name or "devices",))
        places = [_place(mesh, axis, len(shape)) for axis, shape in both]
        divided, named = tree.unflatten(jax.device_put(leaves, places))
        whole = list(args)
        for i, value in zip(mapped, divided, strict=True):
            whole[i] = value
        return tuple(whole), named


def _broadcast(axes: Any, values: Any) -> list[int | None]:
    """The axis of each leaf; None if it is the same on all devices."""
    # JAX does not count None as a leaf.
    shared = object()
    stated = jax.tree.map(
        lambda axis: shared if axis is None else axis,
        axes,
        is_leaf=lambda axis: axis is None,
    )
    found = jax.tree.leaves(jax.tree.broadcast(stated, values))
    return [None if axis is shared else axis for axis in found]


def _place(mesh: Mesh, axis: int | None, ndim: int) -> NamedSharding:
    spec: list[str | None] = [None] * ndim
    if axis is not None:
        spec[axis] = mesh.axis_names[0]
    return NamedSharding(mesh, PartitionSpec(*spec))
