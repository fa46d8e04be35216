"""Devices by name, meshes of some of them, and how an array is split over a mesh."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def choose_device(device: Any, platform: str | None) -> Any:
    """A device from its name.

    Args:
        device: `"cpu"`, `"gpu:1"`, a `jax.Device`, or None.
        platform: a platform that the device must be of, or None.

    Returns:
        The device, or None where JAX's own choice will do.

    Raises:
        ValueError: there is no such device; those that are there are listed.
    """
    if device is not None and not isinstance(device, str):
        return device
    if device is None:
        if platform is None:
            return None
        first = _devices(platform)[0]
        return None if first == jax.devices()[0] else first
    kind, colon, number = device.partition(":")
    if platform is not None and kind != platform:
        raise ValueError(f"device {device!r} is not of the platform {platform!r}.")
    found = _devices(kind)
    if colon and not (number.isdigit() and int(number) < len(found)):
        raise ValueError(
            f"there is no device {device!r}; of that kind there are: "
            f"{', '.join(f'{kind}:{i}' for i in range(len(found)))}."
        )
    return found[int(number) if colon else 0]


def _devices(platform: str) -> list[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError as e:
        there = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise ValueError(
            f"there is no device {platform!r} here; there are: {there}. Install the "
            "JAX build for it, or choose one of these."
        ) from e


def make_mesh(shape: Sequence[int] | None, platform: str | None) -> Mesh | None:
    """A mesh of the first devices, its axes called `d0`, `d1`, ...

    Args:
        shape: how many devices along each axis; None: no mesh.
        platform: whose devices; JAX's default if None.

    Raises:
        ValueError: there are not so many devices, or the shape is no shape.
    """
    if shape is None:
        return None
    lengths = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not lengths or any(type(n) is not int or n < 1 for n in lengths):
        raise ValueError(f"device_mesh must be like (2,) or (2, 2), got {shape!r}.")
    there = _devices(platform) if platform else jax.devices()
    needed = math.prod(lengths)
    if needed > len(there):
        raise ValueError(
            f"device_mesh {lengths} needs {needed} devices, there are {len(there)}. On "
            "a CPU more can be made before JAX starts: set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={needed}."
        )
    grid = np.asarray(there[:needed], dtype=object).reshape(lengths)
    return Mesh(grid, tuple(f"d{i}" for i in range(len(lengths))))


def sharding_of(
    shape: Sequence[int],
    mesh: Mesh | None,
    device_mesh: Sequence[int] | None,
    tensor_split: Sequence[int | None] | None,
) -> NamedSharding:
    """How an array lies over a mesh.

    Args:
        shape: the array's shape.
        mesh: the backend's mesh.
        device_mesh: another mesh shape for this array; the backend's if None.
        tensor_split: for each axis of the mesh the dimension that it splits, or None
            for a copy along it. If not given, dimension 0 is split by the first axis,
            dimension 1 by the second, and so on.

    Raises:
        ValueError: there is no mesh, or a dimension cannot be split so.
    """
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
        split = [i if i < len(shape) else None for i in range(len(axes))]
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
    for dimension, names in by_dimension.items():
        parts = math.prod(mesh.shape[name] for name in names)
        if shape[dimension] % parts:
            raise ValueError(
                f"dimension {dimension} of shape {tuple(shape)} cannot be split into "
                f"{parts} equal parts; say tensor_split=... or change the length."
            )
    spec = [
        tuple(by_dimension[i]) if i in by_dimension else None for i in range(len(shape))
    ]
    return NamedSharding(mesh, PartitionSpec(*spec))
