"""What lies where: every array that is copied or on one device without need."""

import dataclasses

import jax
import numpy as np

from frugax.budget import format_bytes, table
from frugax.trees import PyTree

_LARGE_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One array.

    Attributes:
        path: its place in the tree.
        nbytes: its size, counted once.
        device_bytes: what of it lies on each device that holds any.
        devices: how many do.
        fault: what is wrong with where it lies; empty if nothing is.
    """

    path: str
    nbytes: int
    device_bytes: int
    devices: int
    fault: str


@dataclasses.dataclass(frozen=True, slots=True)
class Audit:
    """Where the arrays of a tree lie.

    Attributes:
        leaves: all of them, large ones first.
        devices: how many devices there are to lie on.
    """

    leaves: tuple[Leaf, ...]
    devices: int

    @property
    def faults(self) -> tuple[Leaf, ...]:
        """Those that lie where they should not."""
        return tuple(leaf for leaf in self.leaves if leaf.fault)

    @property
    def device_bytes(self) -> int:
        """Bytes on the fullest device, if all arrays lie on the same."""
        return sum(leaf.device_bytes for leaf in self.leaves)

    def assert_sound(self) -> None:
        """For tests and the start of a run.

        Raises:
            ValueError: an array lies where it should not; each is named.
        """
        if self.faults:
            named = "; ".join(f"{f.path}: {f.fault}" for f in self.faults[:5])
            more = f" (and {len(self.faults) - 5} more)" if len(self.faults) > 5 else ""
            raise ValueError(f"{named}{more}.")

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
    tree: PyTree, *, planned: PyTree | None = None, large_bytes: int = _LARGE_BYTES
) -> Audit:
    """Look where the arrays of a state lie.

    It catches what costs memory silently: an optimiser state that `jax.jit(init)` put
    on one device although its weights are split, and large arrays that are copied.

    Args:
        tree: arrays, such as a `TrainState`.
        planned: a tree of shardings, such as `Layout.of_state` gives. What lies as
            planned is sound, what does not is a fault. Without it a fault is any large
            array that is copied to all devices or lies on one of several.
        large_bytes: what counts as large.
    """
    shardings = None if planned is None else jax.tree.leaves(planned)
    arrays = jax.tree_util.tree_leaves_with_path(tree)
    count = len(jax.devices())
    leaves: list[Leaf] = []
    for i, (path, x) in enumerate(arrays):
        if not isinstance(x, jax.Array):
            continue
        place = jax.tree_util.keystr(path)
        wanted = None if shardings is None else shardings[i]
        leaves.append(_look(place, x, wanted, count, large_bytes))
    leaves.sort(key=lambda leaf: (not leaf.fault, -leaf.nbytes))
    return Audit(tuple(leaves), count)


def _look(
    path: str,
    x: jax.Array,
    wanted: jax.sharding.Sharding | None,
    count: int,
    large_bytes: int,
) -> Leaf:
    part = x.sharding.shard_shape(x.shape)
    held = int(np.prod(part)) * x.dtype.itemsize
    on = len(x.sharding.device_set)
    fault = ""
    if wanted is not None:
        if not x.sharding.is_equivalent_to(wanted, x.ndim):
            fault = f"lies as {_said(x.sharding)}, planned is {_said(wanted)}"
    elif x.nbytes > large_bytes and count > 1:
        if on == 1:
            fault = f"lies on one device of {count}"
        elif x.is_fully_replicated:
            fault = f"is copied to {on} devices"
    return Leaf(path, x.nbytes, held, on, fault)


def _said(sharding: jax.sharding.Sharding) -> str:
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return f"whole on {len(sharding.device_set)} device"
    return f"split {spec}"
