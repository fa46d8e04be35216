"""Apply functions of matrices to each matrix of a batch, in NumPy and torch."""

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

Function = Callable[..., Any]


def of_batches(library: ModuleType) -> Callable[[Function], Function]:
    """Make a function of matrices and a semiring one of batches, which broadcast.

    Args:
        library: `numpy` or `torch`.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def apply(*given: Any) -> Any:
            *arrays, kind = given
            if all(a.ndim == 2 for a in arrays):
                return function(*arrays, kind)
            batch = library.broadcast_shapes(*(a.shape[:-2] for a in arrays))
            count = math.prod(batch)
            flat = [
                library.broadcast_to(a, (*batch, *a.shape[-2:])).reshape(
                    count, *a.shape[-2:]
                )
                for a in arrays
            ]
            # Zeros stand in for an empty batch, so that the shape is known.
            rows = list(zip(*flat, strict=True)) or [
                [library.zeros_like(a.sum(0), dtype=a.dtype) for a in flat]
            ]
            results = [function(*matrices, kind) for matrices in rows]
            several = isinstance(results[0], tuple)
            parts = [
                library.stack(part)[:count].reshape(*batch, *part[0].shape)
                for part in (zip(*results, strict=True) if several else [results])
            ]
            return tuple(parts) if several else parts[0]

        return apply

    return decorate
