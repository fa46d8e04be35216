"""The table of `from_torch`'s converters, by torch's operation, and their helpers."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from frugax.models.graph import Connection, op

CONVERSIONS: dict[Any, Callable[..., Any]] = {}
aten = torch.ops.aten


class Traced(threading.local):
    """What torch traced of the connections of the module that is being imported.

    Models infer shapes when they are compiled, but some conversions need them now.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        # With the connection, since an id may be used again.
        self.shapes: dict[int, tuple[Any, tuple[int, ...]]] = {}
        self.booleans: set[int] = set()


TRACED = Traced()


def note(value: Any, shape: tuple[int, ...], *, is_bool: bool) -> None:
    """Remember the shape that torch traced for a connection."""
    TRACED.shapes[id(value)] = (value, shape)
    if is_bool:
        TRACED.booleans.add(id(value))


def is_bool(x: Any) -> bool:
    return id(x) in TRACED.booleans or getattr(x, "dtype", None) == np.bool_


def shape_of(x: Any) -> tuple[int, ...]:
    if isinstance(x, Connection):
        return TRACED.shapes[id(x)][1]
    return tuple(np.shape(x))


def register(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a conversion for overloads such as `"add.Tensor"`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            packet, _, overload = name.partition(".")
            found = getattr(aten, packet, None)
            if found is not None and hasattr(found, overload or "default"):
                CONVERSIONS[getattr(found, overload or "default")] = function
        return function

    return add


def same_op(name: str, *torch_names: str) -> None:
    """An op with the tensors of torch's in the same order, and nothing else."""
    register(*torch_names)(lambda *tensors, **_: op(name)(*tensors))


def rank_of(x: Any) -> int:
    return len(shape_of(x))


def length_of(x: Any, axis: int) -> int:
    return shape_of(x)[axis]


def keep_shape(new: Any, old: Any, axis: int, length: int) -> Any:
    shape = list(shape_of(old))
    shape[axis] = length
    note(new, tuple(shape), is_bool=False)
    return new


def slice_axis(x: Any, dim: int, start: Any, end: Any, step: int = 1) -> Any:
    full = ("slice", None, None, None)
    lead = dim if dim >= 0 else rank_of(x) + dim
    return op("getitem", index=(*[full] * lead, ("slice", start, end, step)))(x)


@register("select.int")
def select(x: Any, dim: int, index: int) -> Any:
    full = ("slice", None, None, None)
    lead = dim if dim >= 0 else rank_of(x) + dim
    return op("getitem", index=(*[full] * lead, index))(x)
