"""The array functions of torch that reduce, reshape or index along axes, for ops.

torch takes no tuple of axes for some, no empty one for most, counts in int64, and
raises for an index out of range.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from frugax.models.ops import sum_dtype

from ._arrays import TO_NUMPY, TO_TORCH, Array, Arrays

Axis = int | Sequence[int] | None


def axes_of(axis: Axis, ndim: int) -> tuple[int, ...]:
    """The axes as a tuple of numbers from 0; all for None."""
    if axis is None:
        return tuple(range(ndim))
    # A 0-d tensor has no axis to count from; torch takes 0 and -1 there itself.
    return tuple(a % ndim if ndim else a for a in as_tuple(axis))


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def flattened(x: Array, axis: int | None) -> tuple[torch.Tensor, int]:
    """The tensor and its axis; without an axis, all entries along one."""
    return (x.reshape(-1), 0) if axis is None else (x, axis)


class AxisArrays(Arrays):
    """Reductions, shapes, indices and order."""

    def sum(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """Sum; short integers are counted in int32."""
        dtype = self._sum_dtype(x)
        axes = axes_of(axis, x.ndim)
        if not axes:  # torch takes no axes for all of them
            return x.to(dtype)
        return torch.sum(x, axes, keepdim=keepdims, dtype=dtype)

    def prod(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """Product; short integers are multiplied in int32."""
        dtype = self._sum_dtype(x)
        if axis is None and not keepdims:
            return torch.prod(x, dtype=dtype)
        x = x.to(dtype)
        for a in sorted(axes_of(axis, x.ndim), reverse=True):  # one axis at a time
            x = torch.prod(x, a, keepdim=keepdims, dtype=dtype)
        return x

    def cumsum(self, x: Array, axis: int | None = None) -> torch.Tensor:
        """Running sum; of the flattened tensor without an axis."""
        x, axis = flattened(x, axis)
        return torch.cumsum(x, axis, dtype=self._sum_dtype(x))

    def cumprod(self, x: Array, axis: int | None = None) -> torch.Tensor:
        """Running product; of the flattened tensor without an axis."""
        x, axis = flattened(x, axis)
        return torch.cumprod(x, axis, dtype=self._sum_dtype(x))

    def _sum_dtype(self, x: Array) -> torch.dtype:
        return TO_TORCH[sum_dtype(TO_NUMPY[x.dtype], self.float_dtype)]

    def mean(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """Arithmetic mean."""
        axes = axes_of(axis, x.ndim)
        if not axes:
            return x  # torch would reduce over all axes
        return torch.mean(x, axes, keepdim=keepdims)

    def var(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False, ddof: int = 0
    ) -> torch.Tensor:
        """Sum of squared distances from the mean, divided by n - ddof."""
        axes = axes_of(axis, x.ndim)
        n = math.prod(x.shape[a] for a in axes)
        if n <= ddof or not axes:  # torch.var would warn
            squares = torch.square(x - self.mean(x, axis, keepdims=True))
            return self.sum(squares, axis, keepdims=keepdims) / x.new_tensor(
                max(n - ddof, 0)
            )
        return torch.var(x, axes, correction=ddof, keepdim=keepdims)

    def max(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """The largest; NaN if there is one."""
        return self._extreme(torch.amax, "max", x, axis, keepdims=keepdims)

    def min(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """The smallest; NaN if there is one."""
        return self._extreme(torch.amin, "min", x, axis, keepdims=keepdims)

    def _extreme(
        self, f: Callable[..., Any], name: str, x: Array, axis: Axis, *, keepdims: bool
    ) -> torch.Tensor:
        axes = axes_of(axis, x.ndim)
        if not axes:
            return x
        self._not_empty(name, x, axes)
        return f(x, axes, keepdim=keepdims)

    def _not_empty(self, name: str, x: Array, axes: tuple[int, ...]) -> None:
        if any(x.shape[a] == 0 for a in axes):
            raise ValueError(
                f"{name} of nothing: shape {tuple(x.shape)} is empty along axes {axes}."
            )

    def argmax(
        self, x: Array, axis: int | None = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """Where the first of the largest is."""
        return self._arg(torch.argmax, "argmax", x, axis, keepdims=keepdims)

    def argmin(
        self, x: Array, axis: int | None = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """Where the first of the smallest is."""
        return self._arg(torch.argmin, "argmin", x, axis, keepdims=keepdims)

    def _arg(
        self,
        f: Callable[..., Any],
        name: str,
        x: Array,
        axis: int | None,
        *,
        keepdims: bool,
    ) -> torch.Tensor:
        self._not_empty(name, x, axes_of(axis, x.ndim))
        if x.dtype == torch.bool:  # not implemented in torch
            x = x.to(torch.uint8)
        if axis is None:
            where = f(x.reshape(-1), 0).to(TO_TORCH[self.int_dtype])
            if keepdims:
                return where.reshape((1,) * x.ndim)
            return where
        return f(x, axis, keepdim=keepdims).to(TO_TORCH[self.int_dtype])

    def any(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """Whether some entry is not 0."""
        axes = axes_of(axis, x.ndim)
        if not axes:
            return x != 0
        return torch.any(x != 0, axes, keepdim=keepdims)

    def all(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """Whether no entry is 0."""
        axes = axes_of(axis, x.ndim)
        if not axes:
            return x != 0
        return torch.all(x != 0, axes, keepdim=keepdims)

    def logsumexp(
        self, x: Array, axis: Axis = None, *, keepdims: bool = False
    ) -> torch.Tensor:
        """log(sum(exp(x))) without overflow."""
        axes = axes_of(axis, x.ndim)
        if not axes:
            return x
        return torch.logsumexp(x, axes, keepdim=keepdims)

    def softmax(self, x: Array, axis: Axis = -1) -> torch.Tensor:
        """exp(x), divided by its sum."""
        if isinstance(axis, int):
            return torch.softmax(x, axis)
        return torch.exp(self.log_softmax(x, axis))

    def log_softmax(self, x: Array, axis: Axis = -1) -> torch.Tensor:
        """log(softmax(x))."""
        if isinstance(axis, int):
            return torch.log_softmax(x, axis)
        return x - self.logsumexp(x, axis, keepdims=True)

    # --- shapes -----------------------------------------------------------------------

    def reshape(self, x: Array, shape: Any) -> torch.Tensor:
        """The same entries in another shape; one length may be -1."""
        return torch.reshape(x, tuple(as_tuple(shape)))

    def transpose(self, x: Array, axes: Any = None) -> torch.Tensor:
        """The axes in another order, reversed by default."""
        return torch.permute(
            x, tuple(reversed(range(x.ndim))) if axes is None else axes
        )

    def getitem(self, x: Array, key: tuple[Any, ...]) -> torch.Tensor:
        """x[key], for ints, slices, `...` and None; also with negative steps."""
        backwards = [isinstance(k, slice) and (k.step or 1) < 0 for k in key]
        if not any(backwards):
            return x[key]
        given = sum(k is not None and k is not ... for k in key)
        plain: list[Any] = []
        axis = 0
        for k, back in zip(key, backwards, strict=True):
            if k is ...:
                axis += x.ndim - given
            elif back:
                # A range from the end, turned round: its forward twin, then a flip.
                span = range(*k.indices(x.shape[axis]))
                x = torch.flip(x, (axis,)) if span else x
                start = x.shape[axis] - 1 - span[0] if span else 0
                k = slice(start, start + len(span) * -k.step, -k.step)
                k = k if span else slice(0, 0)
            plain.append(k)
            axis += k is not None and k is not ...
        return x[tuple(plain)]

    def squeeze(self, x: Array, axis: Axis = None) -> torch.Tensor:
        """Without axes of length 1."""
        if axis is None:
            return torch.squeeze(x)
        axes = axes_of(axis, x.ndim)
        if any(x.shape[a] != 1 for a in axes):
            raise ValueError(
                f"squeeze: shape {tuple(x.shape)} is longer than 1 along axes {axes}."
            )
        return torch.squeeze(x, axes)

    def expand_dims(self, x: Array, axis: Any) -> torch.Tensor:
        """With new axes of length 1 at these places of the result."""
        axes = as_tuple(axis)
        # In ascending order: each place is one of the result, so earlier axes must be
        # there when a later one is inserted.
        for a in sorted(a % (x.ndim + len(axes)) for a in axes):
            x = torch.unsqueeze(x, a)
        return x

    def flip(self, x: Array, axis: Axis = None) -> torch.Tensor:
        """In reverse order."""
        return torch.flip(x, axes_of(axis, x.ndim))

    def roll(self, x: Array, shift: Any, axis: Axis = None) -> torch.Tensor:
        """Shifted in a ring."""
        if axis is None:
            return torch.roll(x, shift)
        axes = as_tuple(axis)
        shifts = as_tuple(shift)
        shifts = shifts * len(axes) if len(shifts) == 1 else shifts
        return torch.roll(x, shifts, axes)

    def tile(self, x: Array, reps: Any) -> torch.Tensor:
        """Over and over along each axis."""
        return torch.tile(x, as_tuple(reps))

    def repeat(self, x: Array, repeats: int, axis: int | None = None) -> torch.Tensor:
        """Each entry over and over."""
        return torch.repeat_interleave(x, repeats, axis)

    def pad(
        self,
        x: Array,
        widths: Any,
        mode: Literal["constant", "edge", "reflect", "symmetric", "wrap"] = "constant",
        value: Any = 0,
    ) -> torch.Tensor:
        """`x` with (before, after) more entries along each axis."""
        if mode == "constant":
            flat = [w for pair in reversed(tuple(widths)) for w in pair]
            if not flat:  # torch refuses an empty list of widths
                return x
            return F.pad(x, flat, value=value)
        for axis, (before, after) in enumerate(widths):
            n = x.shape[axis]
            if before or after:
                # As NumPy, whose indices also say what happens beyond one reflection.
                rows = np.pad(np.arange(n), (before, after), mode=mode)
                x = torch.index_select(x, axis, torch.as_tensor(rows, device=x.device))
        return x

    # --- indices and order ------------------------------------------------------------

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
