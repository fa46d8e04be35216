"""The torch implementation of indexing, sorting and scattering, for bodies of ops."""

import math
from typing import Any

import torch

from ._axes import flattened
from ._dtypes import TO_TORCH, Array, Dtypes


class Indexing(Dtypes):
    """The methods of the namespace that take indices or give them."""

    def take(
        self, x: Array, indices: Array, axis: int | None = None, mode: str = "fill"
    ) -> torch.Tensor:
        """Entries at `indices` along an axis."""
        x, along = flattened(x, axis)
        along = along % x.ndim
        # Some of torch's index functions take int64 only. Indices of ops are int32, as
        # in JAX.
        indices = indices.to(torch.int64)
        last = x.shape[along] - 1
        if mode == "clip":
            return self._picked(x, torch.clamp(indices, 0, last), along)
        # An index out of range cannot raise here, because a compiled program cannot. It
        # is read at the nearest place, and the result replaced by NaN.
        indices = self._from_0(indices, x.shape[along])
        at = torch.clamp(indices, 0, last)
        lead, trail = (1,) * along, (1,) * (x.ndim - 1 - along)
        there = (at == indices).reshape(lead + indices.shape + trail)
        return torch.where(there, self._picked(x, at, along), self._nothing(x))

    def _picked(self, x: Array, indices: Array, axis: int) -> torch.Tensor:
        picked = torch.index_select(x, axis, indices.reshape(-1))
        return picked.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def _from_0(self, indices: Array, length: int) -> torch.Tensor:
        return torch.where(indices < 0, indices + length, indices)

    def _nothing(self, x: Array) -> Any:
        """The value read at an index out of range, as in JAX."""
        if x.dtype.is_floating_point or x.dtype.is_complex:
            return math.nan
        if x.dtype == torch.bool:
            return True
        # JAX's fill value for integers: the smallest, or the largest of unsigned ones.
        limits = torch.iinfo(x.dtype)
        return limits.max if limits.min == 0 else limits.min

    def take_along_axis(self, x: Array, indices: Array, axis: int = -1) -> torch.Tensor:
        """One entry for each index, all other axes running along."""
        indices = self._from_0(indices.to(torch.int64), x.shape[axis])
        at = torch.clamp(indices, 0, x.shape[axis] - 1)
        picked = torch.take_along_dim(x, at, axis)
        return torch.where(at == indices, picked, self._nothing(x))

    def scatter_add(
        self, x: Array, indices: Array, updates: Array, axis: int = 0
    ) -> torch.Tensor:
        """`x` with slices added at `indices`, as often as an index is there."""
        axis = axis % x.ndim
        indices = self._from_0(indices.to(torch.int64), x.shape[axis])
        at = torch.clamp(indices, 0, x.shape[axis] - 1)
        there = (at == indices).reshape((-1,) + (1,) * (x.ndim - 1 - axis))
        shape = (*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :])
        # JAX drops updates out of range. Zeros added at a valid place come to the same.
        updates = torch.where(there, updates.expand(shape), 0)
        return torch.index_add(x, axis, at, updates)

    def sort(
        self, x: Array, axis: int = -1, *, descending: bool = False
    ) -> torch.Tensor:
        """In order; NaN is the largest."""
        return torch.sort(x, dim=axis, descending=descending, stable=True).values

    def argsort(
        self, x: Array, axis: int = -1, *, descending: bool = False
    ) -> torch.Tensor:
        """The indices that sort; equals keep their order."""
        order = torch.argsort(x, dim=axis, descending=descending, stable=True)
        return order.to(TO_TORCH[self.int_dtype])

    def top_k(self, x: Array, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The k largest of the last axis in order, and their indices."""
        if k > x.shape[-1]:
            raise ValueError(f"top_k: k={k} of only {x.shape[-1]} entries.")
        # torch.topk returns equal entries in any order; a stable sort does not.
        values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[..., :k], indices[..., :k].to(TO_TORCH[self.int_dtype])
