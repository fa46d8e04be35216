"""The torch implementation of elementwise operations, for the bodies of ops."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ._dtypes import Array


def _tensors(left: Array, right: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as tensors: a Python number takes the other's dtype and device."""
    # With the other's dtype torch's own promotion has nothing left to decide.
    if not isinstance(left, torch.Tensor):
        left = torch.scalar_tensor(left, dtype=right.dtype, device=right.device)
    elif not isinstance(right, torch.Tensor):
        right = torch.scalar_tensor(right, dtype=left.dtype, device=left.device)
    return left, right


def _binary(
    function: Callable[..., Any], *, takes_number: bool = True
) -> Callable[..., Any]:
    """The method that runs `function` on two tensors, or a tensor and a number."""

    def method(self: "Elementwise", left: Array, right: Array) -> torch.Tensor:
        # A number on the right costs less than a tensor made for it. On the left some
        # of torch's functions refuse one.
        if takes_number and isinstance(left, torch.Tensor):
            return function(left, right)
        return function(*_tensors(left, right))

    method.__doc__ = function.__doc__
    return method


class Elementwise:
    """The elementwise methods of the namespace."""

    add = _binary(torch.add)
    multiply = _binary(torch.multiply)
    divide = _binary(torch.true_divide)
    arctan2 = _binary(torch.atan2, takes_number=False)
    maximum = _binary(torch.maximum, takes_number=False)
    minimum = _binary(torch.minimum, takes_number=False)
    subtract = _binary(torch.subtract)
    logaddexp = _binary(torch.logaddexp, takes_number=False)

    def power(self, left: Array, right: Array) -> torch.Tensor:
        """`left` to the power of `right`."""
        if isinstance(right, int) and not left.dtype.is_floating_point and right < 0:
            left, right = _tensors(left, right)  # torch refuses the number only
        return torch.pow(left, right)

    def floor_divide(self, left: Array, right: Array) -> torch.Tensor:
        """`left` / `right`, rounded down; integers by 0 give 0, as NumPy does."""
        down = lambda x, y: torch.div(x, y, rounding_mode="floor")
        return self._by_divisor(down, left, right)

    def remainder(self, left: Array, right: Array) -> torch.Tensor:
        """Remainder of floor_divide, with the sign of `right`; integers by 0 give 0."""
        return self._by_divisor(torch.remainder, left, right)

    def _by_divisor(
        self, f: Callable[..., Any], left: Array, right: Array
    ) -> torch.Tensor:
        left, right = _tensors(left, right)
        if right.dtype.is_floating_point:
            return f(left, right)
        # torch raises for an integer division by 0 on CPU, so the divisor is replaced
        # first and the quotient afterwards.
        zero = right == 0
        return f(left, torch.where(zero, 1, right)).masked_fill(zero, 0)

    def sign(self, x: Array) -> torch.Tensor:
        """-1, 0 or 1; NaN for NaN, which torch.sign takes for 0."""
        signs = torch.sign(x)
        if x.dtype.is_floating_point:
            return torch.where(x.isnan(), x, signs)  # torch's sign of NaN is 0
        return signs

    def round(self, x: Array, decimals: int = 0) -> torch.Tensor:
        """Halves to the even neighbour."""
        if decimals:
            return torch.round(x, decimals=decimals)
        return torch.round(x)

    def clip(self, x: Array, low: Any = None, high: Any = None) -> torch.Tensor:
        """`x` within the bounds; the gradient is 0 at and beyond them."""
        if not x.dtype.is_floating_point:
            return torch.clamp(x, low, high)
        # As torch.clamp, whose gradient at a bound is 1.
        return F.hardtanh(
            x,
            -math.inf if low is None else low,
            math.inf if high is None else high,
        )

    def where(self, condition: Array, left: Array, right: Array) -> torch.Tensor:
        """`left` where the condition holds, `right` elsewhere."""
        if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
            left, right = _tensors(left, right)
        return torch.where(condition, left, right)

    # Comparison, logic and bits.

    equal = _binary(torch.eq)
    not_equal = _binary(torch.ne)
    less = _binary(torch.lt)
    less_equal = _binary(torch.le)
    greater = _binary(torch.gt)
    greater_equal = _binary(torch.ge)
    logical_and = _binary(torch.logical_and, takes_number=False)
    logical_or = _binary(torch.logical_or, takes_number=False)
    logical_xor = _binary(torch.logical_xor, takes_number=False)
    bitwise_and = _binary(torch.bitwise_and)
    bitwise_or = _binary(torch.bitwise_or)
    bitwise_xor = _binary(torch.bitwise_xor)
    left_shift = _binary(torch.bitwise_left_shift)
    right_shift = _binary(torch.bitwise_right_shift)

    # Activations.

    log_sigmoid = staticmethod(F.logsigmoid)

    def celu(self, x: Array, alpha: float = 1.0) -> torch.Tensor:
        """As elu; the gradient of F.celu has only float32's digits in float64."""
        return F.elu(x / alpha) * alpha

    def softplus(self, x: Array) -> torch.Tensor:
        """log(1 + exp(x)); F.softplus returns x above 20, too early in float64."""
        return torch.logaddexp(x, torch.zeros((), dtype=x.dtype, device=x.device))

    def gelu(self, x: Array, *, approximate: bool = False) -> torch.Tensor:
        """Exact by erf, or approximate by tanh."""
        return F.gelu(x, approximate="tanh" if approximate else "none")
