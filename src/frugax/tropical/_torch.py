"""Gradients of tropical operations in torch; imported when a tensor is first met.

torch's maximum splits the gradient among equal terms, and gives one even to a row that
is all zero. So products and closures are computed without autograd. Then a number is
subtracted that is 0 but has the negative of the first optimal term's derivative: this
changes no bit of the result, and gives autograd the subgradient of JAX.
"""

import math

import torch
from torch.autograd import forward_ad


def needs_derivative(*tensors: torch.Tensor) -> bool:
    """Whether autograd, in reverse or forward mode, follows one of the tensors."""
    backward = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return backward or any(
        forward_ad.unpack_dual(t).tangent is not None for t in tensors
    )


def follow_product(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    first: torch.Tensor,
    zero: float,
) -> torch.Tensor:
    """Give a product the derivative of its terms `first`, `(n, m)`."""
    change = _gradient_carrier(a).gather(1, first) + _gradient_carrier(b).gather(
        0, first
    )
    # Zero gradient where no term contributes; NaN where the output is NaN.
    counts = torch.ones_like(out).masked_fill(out != out, math.nan)
    return out - change * counts.masked_fill(out == zero, 0)


def follow_closure(
    d: torch.Tensor, out: torch.Tensor, before: torch.Tensor, zero: float
) -> torch.Tensor:
    """Give a closure the derivatives of the steps of its walks, `(n, n)`."""
    on = torch.eye(len(d), dtype=torch.bool, device=d.device)
    # Pointer doubling: each round follows the walks twice as far from their ends.
    change = _gradient_carrier(d).gather(0, before).masked_fill(on, 0)
    for _ in range((len(d) - 1).bit_length()):
        change = change + change.gather(1, before)
        before = before.gather(1, before)
    return out - change.masked_fill(out == zero, 0)


def _gradient_carrier(a: torch.Tensor) -> torch.Tensor:
    """Return zeros with the derivative of `-a`; subtracting them keeps even -0."""
    return (a.detach() - a).masked_fill(~a.detach().isfinite(), 0)
