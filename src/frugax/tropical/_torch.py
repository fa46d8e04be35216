"""Tropical operations on torch tensors; imported only when one is met.

torch shares the gradient of a maximum among equal terms, and gives one to the best of
none. So products and closures note which term was the first best, and subtract a zero
that falls as that term rises: no bit of theirs changes, and autograd follows the zero.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch.autograd import forward_ad


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
    left, right = a.detach(), b.detach()
    out = left[:, :1] + right[0]
    first = torch.zeros_like(out, dtype=torch.long) if _followed(a, b) else None
    for k in range(1, a.shape[1]):
        term = left[:, k, None] + right[k]
        if first is not None:
            first.masked_fill_(_gains(kind, term, out), k)
        out = _better(kind)(out, term)
    if first is None:
        return out
    change = _moving_zero(a).gather(1, first) + _moving_zero(b).gather(0, first)
    # Nothing for the best of no term; not a number for what is none.
    counts = torch.ones_like(out).masked_fill(out != out, math.nan)
    return out - change * counts.masked_fill(out == _zero(kind), 0)


def closure(d: torch.Tensor, kind: str) -> torch.Tensor:
    """Floyd-Warshall; stops at the first cycle that gains.

    Raises:
        ValueError: there is such a cycle.
    """
    n, better, steps = len(d), _better(kind), d.detach()
    on = torch.eye(n, dtype=torch.bool, device=d.device)
    out = torch.where(on, better(steps, torch.zeros_like(steps)), steps)
    before = None  # the vertex before the last on the best walk from `i` to `j`
    if _followed(d):
        before = torch.arange(n, device=d.device)[:, None].repeat(1, n)
    for k in range(n):
        if out[k, k] != 0:
            raise ValueError(
                f"vertex {k} lies on a cycle of weight {out[k, k].item()}, which gets "
                "better with every round: there is no best walk."
            )
        through = out[:, k, None] + out[k]
        if before is not None:
            before = torch.where(_gains(kind, through, out), before[k], before)
        out = better(out, through)
    if before is None:
        return out
    # Walks are followed from their ends, twice as far in each round.
    change = _moving_zero(d).gather(0, before).masked_fill(on, 0)
    for _ in range((n - 1).bit_length()):
        change = change + change.gather(1, before)
        before = before.gather(1, before)
    return out - change.masked_fill(out == _zero(kind), 0)


def polynomial(
    coefficients: torch.Tensor, exponents: torch.Tensor, points: torch.Tensor, kind: str
) -> torch.Tensor:
    """The best monomial at each point.

    Raises:
        ValueError: an infinite point with a negative power.
    """
    all_three = coefficients, exponents, points
    dtype = functools.reduce(torch.promote_types, (a.dtype for a in all_three))
    coefficients, exponents, points = (a.to(dtype) for a in all_three)
    best = torch.amax if kind == "max" else torch.amin
    if not has_zero(points):  # nor has any of whole numbers an infinite point
        return best(points @ exponents.T + coefficients, dim=1)
    zero = _zero(kind)
    gone = points == zero
    if (gone.any(dim=0) & (exponents < 0).any(dim=0)).any():
        raise ValueError("an infinite point has no negative power.")
    finite = points.masked_fill(gone, 0)
    terms = finite @ exponents.T + coefficients
    swallowed = gone.to(points.dtype) @ (exponents != 0).to(points.dtype).T
    terms = terms.masked_fill(swallowed > 0, zero)
    return best(terms, dim=1)


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


def _followed(*tensors: torch.Tensor) -> bool:
    """Whether anything will ask for a derivative."""
    backward = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return backward or any(
        forward_ad.unpack_dual(t).tangent is not None for t in tensors
    )


def _gains(kind: str, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return new > old if kind == "max" else new < old


def _moving_zero(a: torch.Tensor) -> torch.Tensor:
    """Zeros whose derivative is that of `-a`; subtracting them keeps even -0."""
    return (a.detach() - a).masked_fill(~a.detach().isfinite(), 0)
