"""`audit`: find arrays whose sharding is not the planned one, or wastes memory."""

import dataclasses

import jax
import numpy as np

from frugax.budget import format_bytes, table
from frugax.options import join_first
from frugax.trees import PyTree

from ..processes import Layout

_LARGE_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayPlacement:
    """Placement of one array.

    Attributes:
        path: its path in the tree.
        nbytes: its size, counted once.
        device_bytes: bytes on each device that holds a part of it.
        devices: number of these devices.
        fault: the fault of its placement; empty if it is right.
    """

    path: str
    nbytes: int
    device_bytes: int
    devices: int
    fault: str


@dataclasses.dataclass(frozen=True, slots=True)
class ShardingAudit:
    """Placement of the arrays of a tree.

    Attributes:
        leaves: all arrays, those with a fault first, then large ones first.
        devices: number of available devices.
    """

    leaves: tuple[ArrayPlacement, ...]
    devices: int

    @property
    def faults(self) -> tuple[ArrayPlacement, ...]:
        """The arrays with a wrong placement."""
        return tuple(leaf for leaf in self.leaves if leaf.fault)

    @property
    def device_bytes(self) -> int:
        """Bytes on the fullest device, if it holds a part of every array."""
        return sum(leaf.device_bytes for leaf in self.leaves)

    def assert_sound(self) -> None:
        """Raise if the audit found a fault; for tests and the start of a run.

        Raises:
            ValueError: an array has a wrong placement; each is named.
        """
        if self.faults:
            faults = (f"{f.path}: {f.fault}" for f in self.faults)
            raise ValueError(f"{join_first(faults, separator='; ', limit=5)}.")

    def __str__(self) -> str:
        rows = [
            [
                leaf.path,
                format_bytes(leaf.nbytes),
                format_bytes(leaf.device_bytes),
                f"{leaf.devices} of {self.devices}",
                leaf.fault,
            ]
            for leaf in self.leaves
        ]
        return table(["array", "bytes", "on each device", "devices", "fault"], rows)


def audit(
    tree: PyTree,
    *,
    planned: Layout | PyTree | None = None,
    large_bytes: int = _LARGE_BYTES,
) -> ShardingAudit:
    """Inspect the placement of a state's arrays.

    This finds silent losses of memory: an optimiser state that `jax.jit(init)` put on
    one device although its weights are sharded, and large arrays that are replicated.

    Args:
        tree: arrays, such as a `TrainState`.
        planned: a layout; then each array must be placed as it says, and where it
            splits weights, a large array that it leaves whole is a fault, and so is a
            state of which it splits nothing. Or a tree of shardings, such as
            `Layout.state_sharding` returns; each array must have its own. By default a
            fault is any large array that is replicated on all devices or lies on one of
            several.
        large_bytes: size above which an array counts as large.
    """
    num_devices = len(jax.devices())
    leaves: list[ArrayPlacement] = []
    flat = jax.tree_util.tree_leaves_with_path(tree)
    splits_weights = isinstance(planned, Layout) and planned.splits_weights
    if isinstance(planned, Layout):
        planned = planned.state_sharding(tree)
    shardings = [None] * len(flat) if planned is None else jax.tree.leaves(planned)
    splits_any = any(not s.is_fully_replicated for s in shardings if s is not None)
    largest = max((x.nbytes for _, x in flat if isinstance(x, jax.Array)), default=0)
    for (path, x), sharding in zip(flat, shardings, strict=True):
        if not isinstance(x, jax.Array):
            continue
        # Shards are of equal size, so one shape describes the bytes on every device.
        part = x.sharding.shard_shape(x.shape)
        fault = ""
        if sharding is not None:
            fault = _compare(x, sharding)
            # Without any split weight, the largest one shows it, however small it is.
            is_whole = not fault and splits_weights and sharding.is_fully_replicated
            is_large = x.nbytes > large_bytes or (
                not splits_any and x.nbytes == largest
            )
            if is_whole and is_large:
                fault = (
                    f"is whole on every device: no dimension of {x.shape} is split by "
                    "this layout"
                )
        elif x.nbytes > large_bytes and num_devices > 1:
            fault = _find_waste(x, num_devices)
        leaves.append(
            ArrayPlacement(
                path=jax.tree_util.keystr(path),
                nbytes=x.nbytes,
                device_bytes=int(np.prod(part)) * x.dtype.itemsize,
                devices=len(x.sharding.device_set),
                fault=fault,
            )
        )
    leaves.sort(key=lambda leaf: (not leaf.fault, -leaf.nbytes))
    return ShardingAudit(tuple(leaves), num_devices)


def _compare(x: jax.Array, planned: jax.sharding.Sharding) -> str:
    # Not `==`: shardings with different specs may place an array the same way.
    if x.sharding.is_equivalent_to(planned, x.ndim):
        return ""
    return f"is {_describe(x.sharding)}, planned is {_describe(planned)}"


def _find_waste(x: jax.Array, num_devices: int) -> str:
    devices = len(x.sharding.device_set)
    if devices == 1:
        return f"is on one device of {num_devices}"
    if x.is_fully_replicated:
        return f"is replicated on {devices} devices"
    return ""


def _describe(sharding: jax.sharding.Sharding) -> str:
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return f"whole on {len(sharding.device_set)} device"
    return f"split {spec}"
