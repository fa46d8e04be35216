"""The torch implementation of reductions, cumulative sums and softmax, for ops.

torch takes no tuple of axes for some, no empty one for most, and counts in int64.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from frugax.models.ops import sum_dtype

from ._axes import Axis, axes_of, flattened
from ._dtypes import TO_NUMPY, TO_TORCH, Array, Dtypes


class Reductions(Dtypes):
    """The methods of the namespace that run along axes."""

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
