"""Record the operations of a model by a walk over torch's meta tensors.

Such tensors have a shape and a dtype but no memory, so a layer of any size costs the
same. Their lengths are numbers. A model with free lengths is walked through twice, with
two sets of unlikely numbers, and a length that differs between the two depends on free
ones. (Fake tensors with symbolic lengths would take three seconds of imports and 10 ms
an operation.)
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from frugax.errors import ShapeError
from frugax.models.graph import Library, ModelGraph, Spec, record

from ._namespace import TorchNamespace

_LARGEST_OFFSET = 256  # far below the stand-ins: another rule would not come so near


class FreeLength(str):
    """The text of a length that depends on free dimensions: `batch`, `2*batch`."""

    __slots__ = ()

    def __repr__(self) -> str:  # a shape shows it as JAX's symbolic lengths
        return str(self)


def spec_of(value: Any, xp: TorchNamespace) -> Spec:
    """Shape and dtype of a tensor, or of what `xp` makes a tensor of."""
    if not isinstance(value, torch.Tensor):
        value = xp.asarray(value)
    return Spec(tuple(value.shape), xp.dtype_of(value))


def record_shapes(
    graph: ModelGraph, specs: Mapping[str, Spec], find: Any, float_dtype: np.dtype
) -> ModelGraph:
    """Walk through a program on meta tensors; lengths that depend on names are text."""
    names = dict.fromkeys(
        length
        for spec in specs.values()
        for length in spec.shape
        if isinstance(length, str)
    )
    walks = [
        _walk(graph, specs, dict(zip(names, primes, strict=False)), find, float_dtype)
        for primes in (_primes(1009, 100), _primes(3001, 300))[: 2 if names else 1]
    ]
    if not names:
        return walks[0][0]
    (first, first_names), (second, second_names) = walks

    def free(a: Any, b: Any) -> Any:
        return a if a == b else FreeLength(_as_text((a, b), first_names, second_names))

    for key, weight in first.weights.items():
        for a, b in zip(weight.shape, second.weights[key].shape, strict=True):
            if a != b:
                raise ShapeError(
                    f"the shape of the weight {key!r} depends on the dimension "
                    f"{free(a, b)}, which is free: state its length in `shapes`."
                )
    shapes = {
        key: Spec(tuple(map(free, spec.shape, second.specs[key].shape)), spec.dtype)
        for key, spec in first.specs.items()
    }
    return dataclasses.replace(first, specs=shapes)


def _walk(
    graph: ModelGraph,
    specs: Mapping[str, Spec],
    lengths: Mapping[str, int],
    find: Any,
    float_dtype: np.dtype,
) -> tuple[ModelGraph, Mapping[str, int]]:
    xp = TorchNamespace(float_dtype, device=torch.device("meta"))
    names = {length: FreeLength(name) for name, length in lengths.items()}

    def named(value: Any) -> Spec:
        """The spec of a tensor, with the names of free lengths in place of numbers."""
        spec = spec_of(value, xp)
        return Spec(tuple(names.get(n, n) for n in spec.shape), spec.dtype)

    given: dict[str, Any] = {
        key: xp.zeros([lengths.get(n, n) for n in spec.shape], spec.dtype)
        for key, spec in specs.items()
    }
    given |= {
        key: value.to("meta")
        for key, value in graph.constants.items()
        if isinstance(value, torch.Tensor)
    }
    # Meta tensors would otherwise record a graph for a backward pass that never comes.
    with torch.no_grad():
        return record(graph, given, Library(xp, find, float_dtype, named)), lengths


def _as_text(
    at: tuple[int, int], first: Mapping[str, int], second: Mapping[str, int]
) -> str:
    """The length as a multiple of a product of names and a little more or less."""
    # Products of more than three free lengths do not occur in practice.
    for count in (1, 2, 3):
        for factors in itertools.combinations_with_replacement(first, count):
            product = [
                math.prod(known[f] for f in factors) for known in (first, second)
            ]
            # The difference of the two answers cancels the constant part, so the
            # quotient is the factor, and the rest of the length is the offset.
            times, rest = divmod(at[0] - at[1], product[0] - product[1])
            more = at[0] - times * product[0]
            if rest == 0 and times and abs(more) <= _LARGEST_OFFSET:
                text = "*".join(factors)
                text = text if times == 1 else f"{times}*{text}"
                return (
                    f"{text} {'+' if more > 0 else '-'} {abs(more)}" if more else text
                )
    # Such as a half of it: two numbers do not tell how it is rounded.
    return f"?({', '.join(first)})"


def _primes(start: int, step: int) -> Iterator[int]:
    """Numbers longer than any window, and short enough to compute indices of them."""
    while True:
        start = next(n for n in itertools.count(start) if _is_prime(n))
        yield start
        start += step


def _is_prime(number: int) -> bool:
    return all(number % d for d in range(2, math.isqrt(number) + 1))
