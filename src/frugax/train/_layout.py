"""Where the parts of a training state and of a batch lie on a mesh of devices."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from frugax.trees import PyTree

from ._processes import put

LayoutKind: TypeAlias = Literal["data", "tensor", "fully-sharded"]

_SPLIT_ALONG: dict[LayoutKind, tuple[str, ...]] = {
    "data": (),
    "tensor": ("model",),
    "fully-sharded": ("data", "model"),
}
# Splitting less than this saves nothing and costs a message each step.
_LEAST_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How a step is spread over devices.

    Every kind splits the batch along the mesh's first axis, `data`. `"data"` keeps a
    copy of the state on every device. `"tensor"` splits large weights along the second
    axis, `model`. `"fully-sharded"` splits them along both (Rajbhandari et al. 2020,
    arXiv:1910.02054, stage 3). A weight's optimiser state is split as the weight is.

    Attributes:
        mesh: the devices, with axes `data` and `model`.
        kind: what is split.
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
        """A layout over a mesh of the first devices.

        Args:
            shape: devices along `data`, or along `data` and `model`; all along `data`
                if not given.
            kind: what is split.
            devices: which devices; all of every process if not given.

        Raises:
            ValueError: there are not so many devices, or the kind is unknown.
        """
        there = list(jax.devices() if devices is None else devices)
        lengths = tuple(shape) if shape is not None else (len(there),)
        if not 1 <= len(lengths) <= 2 or any(n < 1 for n in lengths):
            raise ValueError(f"a mesh is like (8,) or (4, 2), got {shape!r}.")
        lengths = (*lengths, 1)[:2]
        needed = math.prod(lengths)
        if needed > len(there):
            raise ValueError(
                f"a mesh of {lengths} needs {needed} devices, there are {len(there)}."
            )
        if kind not in ("data", "tensor", "fully-sharded"):
            raise ValueError(
                f'kind must be "data", "tensor" or "fully-sharded", got {kind!r}.'
            )
        grid = np.asarray(there[:needed], dtype=object).reshape(lengths)
        return cls(Mesh(grid, ("data", "model")), kind)

    @property
    def data_size(self) -> int:
        """Into how many parts the batch is split."""
        return self.mesh.shape["data"]

    def of_weight(self, shape: Sequence[int], itemsize: int) -> NamedSharding:
        """Where one array of the state lies.

        The longest dimension that can be divided is split; the earlier one of equals.

        Args:
            shape: its shape.
            itemsize: bytes of one number.
        """
        axes = _SPLIT_ALONG[self.kind]
        parts = math.prod(self.mesh.shape[a] for a in axes)
        spec: list[Any] = [None] * len(shape)
        if parts > 1 and math.prod(shape) * itemsize >= _LEAST_BYTES:
            by_length = sorted(range(len(shape)), key=lambda i: (-shape[i], i))
            divisible = [i for i in by_length if shape[i] % parts == 0]
            if divisible:
                spec[divisible[0]] = axes[0] if len(axes) == 1 else axes
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def of_state(self, state: PyTree) -> PyTree:
        """Where each array of a state lies; for arrays or their shapes."""
        return jax.tree.map(lambda x: self.of_weight(x.shape, x.dtype.itemsize), state)

    def of_batch(self, batch: PyTree) -> PyTree:
        """Where each array of a batch lies: its first axis split, numbers copied.

        Raises:
            ValueError: an array's first axis cannot be split so.
        """

        def where(path: Any, x: Any) -> NamedSharding:
            if not np.ndim(x):
                return self.copied
            self._check_splits(f"batch{jax.tree_util.keystr(path)}", np.shape(x))
            return NamedSharding(self.mesh, PartitionSpec("data"))

        return jax.tree_util.tree_map_with_path(where, batch)

    @property
    def copied(self) -> NamedSharding:
        """A copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def place_state(self, state: PyTree) -> PyTree:
        """Put a state, the same in every process, where it belongs."""
        return jax.tree.map(put, state, self.of_state(state))

    def place_batch(self, batch: PyTree) -> PyTree:
        """Put a batch, the same in every process, where it belongs.

        Each process puts its own part only. Arrays that lie right already stay, such
        as those of `from_local`.

        Raises:
            ValueError: an array's first axis cannot be split so.
        """
        return jax.tree.map(put, batch, self.of_batch(batch))

    def local_rows(self, rows: int) -> slice:
        """Which rows of a batch the devices of this process need.

        With `from_local` each process loads its own share only:

            rows = layout.local_rows(256)
            batch_of = lambda step: layout.from_local(load(step, rows))

        Args:
            rows: how many the whole batch has.

        Raises:
            ValueError: they cannot be split so, this process's are in several pieces,
                or it has none.
        """
        self._check_splits("rows", (rows,))
        sharding = NamedSharding(self.mesh, PartitionSpec("data"))
        pieces = {
            part[0].indices(rows)[:2]
            for part in sharding.addressable_devices_indices_map((rows,)).values()
            if part is not None
        }
        if not pieces:
            raise ValueError("the mesh has no device of this process.")
        first, last = min(pieces)[0], max(pieces)[1]
        if sum(stop - start for start, stop in pieces) != last - first:
            raise ValueError(
                "the rows of this process are in several pieces: make the mesh of the "
                "devices in their own order."
            )
        return slice(first, last)

    def from_local(self, batch: PyTree) -> PyTree:
        """A whole batch of which this process has its own rows only.

        All processes call this, each with its `local_rows`; numbers are the same in
        all of them. Nothing is sent. The step takes what comes back as any batch.

        Raises:
            ValueError: an array's first axis cannot be this process's share.
        """
        share = self.local_rows(self.data_size)
        parts = share.stop - share.start

        def place(path: Any, x: Any) -> jax.Array:
            part = np.asarray(x)
            if not part.ndim:
                return put(part, self.copied)
            if part.shape[0] % parts:
                raise ValueError(
                    f"batch{jax.tree_util.keystr(path)} of shape {part.shape} cannot "
                    f"be split over the {parts} parts of the batch that lie in this "
                    f"process: give it rows that {parts} divides."
                )
            whole = (part.shape[0] // parts * self.data_size, *part.shape[1:])
            sharding = NamedSharding(self.mesh, PartitionSpec("data"))
            return jax.make_array_from_process_local_data(sharding, part, whole)

        return jax.tree_util.tree_map_with_path(place, batch)

    def _check_splits(self, name: str, shape: tuple[int, ...]) -> None:
        if shape[0] % self.data_size:
            said = shape[0] if name == "rows" else f"of shape {shape}"
            raise ValueError(
                f"{name} {said} cannot be split over {self.data_size} devices: take a "
                f"batch that {self.data_size} divides."
            )

    def __str__(self) -> str:
        return f"{self.kind} over {dict(self.mesh.shape)}"
