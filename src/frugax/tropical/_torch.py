"""Tropical operations on torch tensors; imported only when one is met.

Eager and out of place, so that gradients flow through them.
"""

import math
from collections.abc import Callable

import torch


def has_zero(a: torch.Tensor) -> bool:
    """Whether the dtype has infinities."""
    return a.dtype.is_floating_point


def holds_infinity(a: torch.Tensor, which: float) -> bool:
    """Whether this infinity is in the tensor."""
    return has_zero(a) and bool((a == which).any())


def holds_nan(a: torch.Tensor) -> bool:
    """Whether what is no number is in the tensor."""
    return bool((a != a).any())


def identity(n: int, like: torch.Tensor, kind: str) -> torch.Tensor:
    """0 on the diagonal, the zero elsewhere."""
    return like.new_full((n, n), _zero(kind)).fill_diagonal_(0)


def matmul(a: torch.Tensor, b: torch.Tensor, kind: str) -> torch.Tensor:
    """`out[i, j]` is the best `a[i, k] + b[k, j]`, one k at a time."""
    if a.shape[1] == 0:
        return a.new_full((a.shape[0], b.shape[1]), _zero(kind))
    out = a[:, :1] + b[0]
    for k in range(1, a.shape[1]):
        out = _better(kind)(out, a[:, k, None] + b[k])
    return out


def closure(d: torch.Tensor, kind: str) -> torch.Tensor:
    """Floyd-Warshall; stops at the first cycle that gains.

    Raises:
        ValueError: there is such a cycle.
    """
    better = _better(kind)
    on = torch.eye(len(d), dtype=torch.bool, device=d.device)
    out = torch.where(on, better(d, torch.zeros_like(d)), d)
    for k in range(len(out)):
        if out[k, k] != 0:
            raise ValueError(
                f"vertex {k} lies on a cycle of weight {out[k, k].item()}, which gets "
                "better with every round: there is no best walk."
            )
        out = better(out, out[:, k, None] + out[k])
    return out


def polynomial(
    coefficients: torch.Tensor, exponents: torch.Tensor, points: torch.Tensor, kind: str
) -> torch.Tensor:
    """The best monomial at each point.

    Raises:
        ValueError: an infinite point with a negative power.
    """
    zero = _zero(kind)
    gone = points == zero
    if (gone.any(dim=0) & (exponents < 0).any(dim=0)).any():
        raise ValueError("an infinite point has no negative power.")
    finite = points.masked_fill(gone, 0)
    terms = finite @ exponents.T + coefficients
    swallowed = gone.to(points.dtype) @ (exponents != 0).to(points.dtype).T
    terms = terms.masked_fill(swallowed > 0, zero)
    return terms.amax(dim=1) if kind == "max" else terms.amin(dim=1)


def convolve(short: torch.Tensor, long: torch.Tensor, kind: str) -> torch.Tensor:
    """One pass over the long sequence for each number of the short one."""
    better, m = _better(kind), len(long)
    out = short[0] + long
    for i in range(1, len(short)):
        shifted = short[i] + long
        inside = better(out[i:], shifted[: m - 1])
        out = torch.cat([out[:i], inside, shifted[m - 1 :]])
    return out


def _zero(kind: str) -> float:
    return -math.inf if kind == "max" else math.inf


def _better(kind: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return torch.maximum if kind == "max" else torch.minimum
