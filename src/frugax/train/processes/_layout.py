"""`Layout`: how a training state and its batches are sharded over a mesh of devices."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from frugax.trees import PyTree

from ._collectives import shard_global

LayoutKind: TypeAlias = Literal["data", "tensor", "fully-sharded"]

_WEIGHT_AXES: dict[LayoutKind, tuple[str, ...]] = {
    "data": (),
    "tensor": ("model",),
    "fully-sharded": ("data", "model"),
}
# Sharding smaller arrays saves nothing and costs a message at each step.
_MIN_SHARDED_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How a step is spread over devices.

    Every kind splits the batch along the mesh's first axis, `data`. `"data"` replicates
    the state on every device. `"tensor"` splits large weights along the second axis,
    `model`. `"fully-sharded"` splits them along both axes (Rajbhandari et al. 2020,
    arXiv:1910.02054, stage 3). A weight's optimiser state is split as the weight is.

    Attributes:
        mesh: the devices, with axes `data` and `model`.
        kind: the arrays that are split.
    """

    mesh: Mesh
    kind: LayoutKind

    @classmethod
    def over(
        cls,
        shape: Sequence[int] | None = None,
        kind: LayoutKind = "data",
        *,
        devices: Sequence[Any] | None = None,
    ) -> "Layout":
        """Return a layout over a mesh of the first devices.

        Args:
            shape: number of devices along `data`, or along `data` and `model`; by
                default all along `data`, or for `"tensor"` all along `model`.
            kind: the arrays that are split.
            devices: the devices; by default all devices of every process.

        Raises:
            ValueError: there are too few devices, the kind is unknown, or nothing could
                be split along `model`.
        """
        available = list(jax.devices() if devices is None else devices)
        lengths = (len(available),)
        if shape is not None:
            lengths = tuple(shape)
        elif kind == "tensor":
            lengths = (1, len(available))
        if not 1 <= len(lengths) <= 2 or any(n < 1 for n in lengths):
            raise ValueError(f"a mesh is like (8,) or (4, 2), got {shape!r}.")
        lengths = (*lengths, 1)[:2]
        needed = math.prod(lengths)
        if needed > len(available):
            raise ValueError(
                f"a mesh of {lengths} needs {needed} devices, there are "
                f"{len(available)}."
            )
        if kind not in get_args(LayoutKind):
            raise ValueError(
                f'kind must be "data", "tensor" or "fully-sharded", got {kind!r}.'
            )
        # Every weight would be copied to every device, as by "data".
        if kind == "tensor" and lengths[1] == 1 < lengths[0]:
            raise ValueError(
                f"a tensor layout over {lengths} splits no weight: give 2 or more "
                f"devices along model, such as (1, {lengths[0]})."
            )
        # Devices in their own order: the rows of one process are then contiguous.
        grid = np.asarray(available[:needed], dtype=object).reshape(lengths)
        return cls(Mesh(grid, ("data", "model")), kind)

    @property
    def splits_weights(self) -> bool:
        """Whether the layout means to split weights over several devices."""
        return math.prod(self.mesh.shape[a] for a in _WEIGHT_AXES[self.kind]) > 1

    @property
    def data_size(self) -> int:
        """Number of parts into which the batch is split."""
        return self.mesh.shape["data"]

    @property
    def replicated(self) -> NamedSharding:
        """The sharding that copies an array to every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def _split_rows(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec("data"))

    def array_sharding(self, shape: Sequence[int], itemsize: int) -> NamedSharding:
        """Return the sharding of one array of the state.

        The longest divisible dimension is split, the first of equally long ones.

        Args:
            shape: shape of the array.
            itemsize: bytes of one number.
        """
        axes = _WEIGHT_AXES[self.kind]
        parts = math.prod(self.mesh.shape[a] for a in axes)
        spec: list[Any] = [None] * len(shape)
        if parts > 1 and math.prod(shape) * itemsize >= _MIN_SHARDED_BYTES:
            # JAX refuses to split a dimension into unequal parts.
            divisible = [i for i, length in enumerate(shape) if length % parts == 0]
            if divisible:
                longest = max(divisible, key=lambda i: (shape[i], -i))
                spec[longest] = axes[0] if len(axes) == 1 else axes
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def state_sharding(self, state: PyTree) -> PyTree:
        """Return the sharding of each array of a state, given arrays or shapes."""
        return jax.tree.map(
            lambda x: self.array_sharding(x.shape, x.dtype.itemsize), state
        )

    def batch_sharding(self, batch: PyTree) -> PyTree:
        """Return the sharding of each array of a batch: rows split, scalars replicated.

        Raises:
            ValueError: an array's first axis is not divisible.
        """

        def sharding(path: Any, x: Any) -> NamedSharding:
            if not np.ndim(x):
                return self.replicated
            self._check_divisible(f"batch{jax.tree_util.keystr(path)}", np.shape(x))
            return self._split_rows

        return jax.tree_util.tree_map_with_path(sharding, batch)

    def place_state(self, state: PyTree) -> PyTree:
        """Shard a state that every process holds."""
        return jax.tree.map(shard_global, state, self.state_sharding(state))

    def place_batch(self, batch: PyTree) -> PyTree:
        """Shard a batch that every process holds; each puts its own part only.

        Arrays that have the right sharding, such as those of `from_local`, stay.

        Raises:
            ValueError: an array's first axis is not divisible.
        """
        return jax.tree.map(shard_global, batch, self.batch_sharding(batch))

    def local_rows(self, rows: int) -> slice:
        """Return the rows of a batch that the devices of this process need.

        With `from_local` each process loads its own share only:

            rows = layout.local_rows(256)
            batch_of = lambda step: layout.from_local(load(step, rows))

        Args:
            rows: number of rows of the whole batch.

        Raises:
            ValueError: they are not divisible, or this process has none of them or
                several separate ranges.
        """
        self._check_divisible("rows", (rows,))
        indices = self._split_rows.addressable_devices_indices_map((rows,))
        ranges = {
            part[0].indices(rows)[:2] for part in indices.values() if part is not None
        }
        if not ranges:
            raise ValueError("the mesh has no device of this process.")
        first, last = min(ranges)[0], max(ranges)[1]
        # Separate ranges leave a gap, so their lengths add up to less.
        if sum(stop - start for start, stop in ranges) != last - first:
            raise ValueError(
                "the rows of this process are in several ranges: make the mesh of the "
                "devices in their own order."
            )
        return slice(first, last)

    def from_local(self, batch: PyTree) -> PyTree:
        """Assemble a whole batch from each process's own rows.

        All processes call this, each with its `local_rows`; scalars must be the same in
        all of them. No data is sent. The step takes the result like any batch.

        Raises:
            ValueError: an array's first axis cannot be this process's share.
        """
        share = self.local_rows(self.data_size)
        parts = share.stop - share.start

        def place(path: Any, x: Any) -> jax.Array:
            part = np.asarray(x)
            if not part.ndim:
                return shard_global(part, self.replicated)
            if part.shape[0] % parts:
                raise ValueError(
                    f"batch{jax.tree_util.keystr(path)} of shape {part.shape} cannot "
                    f"be split over the {parts} parts of the batch in this process: "
                    f"give it a number of rows that {parts} divides."
                )
            whole = (part.shape[0] // parts * self.data_size, *part.shape[1:])
            return jax.make_array_from_process_local_data(self._split_rows, part, whole)

        return jax.tree_util.tree_map_with_path(place, batch)

    def _check_divisible(self, name: str, shape: tuple[int, ...]) -> None:
        if shape[0] % self.data_size:
            found = shape[0] if name == "rows" else f"of shape {shape}"
            raise ValueError(
                f"{name} {found} cannot be split over {self.data_size} devices: take a "
                f"batch that {self.data_size} divides."
            )

    def __str__(self) -> str:
        return f"{self.kind} over {dict(self.mesh.shape)}"
