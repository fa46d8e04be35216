"""Convert NumPy's `axis` arguments to the forms that torch accepts."""

from collections.abc import Sequence
from typing import Any

import torch

from ._dtypes import Array

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
