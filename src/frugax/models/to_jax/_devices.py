"""Choose JAX devices by name, build meshes, and shard a model's arrays over them."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def choose_device(device: Any, platform: str | None) -> Any:
    """Choose a device by its name."""
    if device is not None and not isinstance(device, str):
        return device
    if device is None:
        if platform is None:
            return None
        first = _devices(platform)[0]
        # None keeps the backend out of `jax.default_device`, so that models of JAX's
        # default device run without a scope at every call.
        if first == jax.devices()[0]:
            return None
        return first
    kind, colon, number = device.partition(":")
    if platform is not None and kind != platform:
        raise ValueError(f"device {device!r} is not of the platform {platform!r}.")
    found = _devices(kind)
    if colon and not (number.isdigit() and int(number) < len(found)):
        raise ValueError(
            f"device {device!r} does not exist; devices of that kind: "
            f"{', '.join(f'{kind}:{i}' for i in range(len(found)))}."
        )
    return found[int(number or 0)]


def _devices(platform: str) -> list[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError as e:
        known = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise ValueError(
            f"JAX has no {platform!r} device here; it has: {known}. Install the JAX "
            "build for it, or choose one of these."
        ) from e


def make_mesh(shape: Sequence[int] | None, platform: str | None) -> Mesh | None:
    """Build a mesh of the first devices, with axes `d0`, `d1`, ..."""
    if shape is None:
        return None
    lengths: tuple[Any, ...] = (shape,)
    if isinstance(shape, Sequence):
        lengths = tuple(shape)
    if not lengths or any(type(n) is not int or n < 1 for n in lengths):
        raise ValueError(f"device_mesh must be like (2,) or (2, 2), got {shape!r}.")
    devices = jax.devices()
    if platform:
        devices = _devices(platform)
    needed = math.prod(lengths)
    if needed > len(devices):
        raise ValueError(
            f"device_mesh {lengths} needs {needed} devices, and {len(devices)} exist. "
            "A CPU can act as more devices: before JAX starts, set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={needed}."
        )
    # dtype=object keeps NumPy from looking inside a device for a sequence.
    grid = np.asarray(devices[:needed], dtype=object).reshape(lengths)
    return Mesh(grid, tuple(f"d{i}" for i in range(len(lengths))))


def sharding_of(
    shape: Sequence[int],
    mesh: Mesh | None,
    device_mesh: Sequence[int] | None,
    tensor_split: Sequence[int | None] | None,
) -> NamedSharding:
    """Build the sharding of an array over a mesh."""
    # The backend's own mesh is reused if the shapes agree; a new one takes the devices
    # of the default platform, which may be another.
    if device_mesh is not None:
        lengths = tuple(device_mesh)
        if mesh is None or mesh.devices.shape != lengths:
            mesh = make_mesh(lengths, None)
    if mesh is None:
        raise ValueError(
            "tensor_split needs a device_mesh, here or on the backend: "
            "JaxBackend(device_mesh=(2,))."
        )
    axes = mesh.axis_names
    split: Sequence[int | None]
    if tensor_split is None:
        # A vector on a mesh of two axes is split by the first and copied along the
        # second.
        split = [*range(min(len(axes), len(shape)))]
    else:
        split = tuple(tensor_split)
        if len(split) > len(axes):
            raise ValueError(
                f"tensor_split {tuple(split)} names {len(split)} mesh axes, the mesh "
                f"{mesh.devices.shape} has {len(axes)}."
            )
    by_dimension: dict[int, list[str]] = {}
    for axis, dimension in zip(axes, split, strict=False):
        if dimension is None:
            continue
        if type(dimension) is not int or not -len(shape) <= dimension < len(shape):
            raise ValueError(
                f"tensor_split {tuple(split)}: an array of shape {tuple(shape)} has "
                f"no dimension {dimension!r}."
            )
        by_dimension.setdefault(dimension % len(shape), []).append(axis)
    # Checked here, so that the message can name tensor_split, which the error of
    # device_put does not know.
    for dimension, names in by_dimension.items():
        parts = math.prod(mesh.shape[name] for name in names)
        if shape[dimension] % parts:
            raise ValueError(
                f"dimension {dimension} of shape {tuple(shape)} cannot be split into "
                f"{parts} equal parts; give tensor_split=... or change the length."
            )
    spec: list[tuple[str, ...] | None] = [None] * len(shape)
    for dimension, names in by_dimension.items():
        spec[dimension] = tuple(names)
    return NamedSharding(mesh, PartitionSpec(*spec))
