"""`TorchNamespace`: the array functions `xp` that bodies of ops call, in torch.

The same methods as the JAX namespace, with NumPy's rules: torch's own dtype rules, its
int64 indices, and its refusals (several axes, negative steps, empty arrays) end here.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from frugax.models.ops import FLOAT_DTYPE, as_dtype

from ._arrays import Array
from ._aten import evaluate
from ._kernels import Kernels


class TorchNamespace(Kernels):
    """The operations of torch, as bodies of ops see them.

    Attributes:
        float_dtype: dtype of a Python float, and the default of new tensors.
        device: where new tensors are made; torch's default if None.
    """

    def __init__(self, float_dtype: np.dtype = FLOAT_DTYPE, device: Any = None) -> None:
        self.float_dtype = as_dtype(float_dtype)
        self.device = device

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Torch's own function, where it needs nothing else to follow NumPy's rules."""
        found = next((m for m in (torch, F) if hasattr(m, name)), None)
        if found is None or name.startswith("_"):
            raise AttributeError(f"TorchNamespace has no {name!r}.")
        function = getattr(found, name)
        setattr(self, name, function)  # every eager call asks
        return function

    def rules(self) -> Any:
        """Nothing: torch broadcasts."""
        return contextlib.nullcontext()

    def scope(self, name: str) -> Any:
        """Nothing: torch's profiler shows Python's own calls."""
        return contextlib.nullcontext()

    def stop_gradient(self, x: Array) -> Array:
        """`x`, constant for differentiation."""
        return x.detach()

    def aten(
        self,
        function: str,
        tensors: Sequence[Array],
        arguments: tuple[Any, ...],
        named: Sequence[tuple[str, Any]],
    ) -> Any:
        """An operation of torch's ATen library; see the op `aten`."""
        return evaluate(self, function, tensors, arguments, named)

    def scan(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        carry: Any,
        xs: Any,
        *,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """Run `carry, y = step(carry, x)` along the first axis; carry and all y."""
        # Bodies may nest tuples and leave optional tensors out as None, so the first
        # tensor gives the length.
        first = xs
        while isinstance(first, tuple):
            first = next((x for x in first if x is not None), None)
        if first is None or first.shape[0] == 0:
            raise ValueError("scan needs at least one step, got an empty first axis.")
        length = first.shape[0]
        if first.device.type == "meta":  # every step has the same shapes
            carry, y = step(carry, _each(lambda x: x[0], xs))
            return carry, _each(lambda one: one.expand(length, *one.shape), y)
        # A Python loop: torch has no scan for eager code. Outputs are stacked once at
        # the end, since growing a tensor at each step would copy it each time.
        ys: list[Any] = [None] * length
        for i in range(length)[:: 1 - 2 * reverse]:
            carry, ys[i] = step(carry, _each(lambda x, i=i: x[i], xs))
        return carry, _each(lambda *y: torch.stack(y), *ys)


def _each(f: Callable[..., Any], *trees: Any) -> Any:
    """`f` of the tensors that stand at the same place in tuples of tuples."""
    if trees[0] is None:
        return None
    if isinstance(trees[0], tuple):
        return tuple(_each(f, *parts) for parts in zip(*trees, strict=True))
    return f(*trees)
