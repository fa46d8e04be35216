"""The torch implementation of reshaping, joining and slicing, for the bodies of ops."""

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from ._axes import Axis, as_tuple, axes_of
from ._dtypes import Array


class Shapes:
    """The methods of the namespace that move entries and compute nothing."""

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
