"""Tropical operations on torch tensors; imported when one is first passed in.

torch's maximum splits the gradient among equal terms, and gives one even to a row that
is all zero. So products and closures record the first optimal term, and subtract a
number that is 0 but has the negative of that term's derivative: this changes no bit of
the result, and gives autograd the subgradient of JAX.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch.autograd import forward_ad


def has_infinity(a: torch.Tensor) -> bool:
    """Whether the dtype has infinities."""
    return a.dtype.is_floating_point


def contains(a: torch.Tensor, which: float) -> bool:
    """Whether the tensor contains this infinity."""
    return has_infinity(a) and bool((a == which).any())


def contains_nan(a: torch.Tensor) -> bool:
    """Whether the tensor contains NaN."""
    return bool((a != a).any())


def identity(n: int, like: torch.Tensor, kind: str) -> torch.Tensor:
    """Return 0 on the diagonal and the zero elsewhere."""
    return like.new_full((n, n), _zero(kind)).fill_diagonal_(0)


def matmul(a: torch.Tensor, b: torch.Tensor, kind: str) -> torch.Tensor:
    """Compute the product, one k at a time."""
    if a.shape[1] == 0:
        return a.new_full((a.shape[0], b.shape[1]), _zero(kind))
    # Detached, because autograd would store all n * k * m terms for its backward pass.
    left, right = a.detach(), b.detach()
    out = left[:, :1] + right[0]
    first = None
    if _needs_derivative(a, b):
        first = torch.zeros_like(out, dtype=torch.long)
    for k in range(1, a.shape[1]):
        term = left[:, k, None] + right[k]
        if first is not None:
            # Only a strictly better term: the first of equal ones keeps the gradient,
            # as in JAX.
            first.masked_fill_(_is_better(kind, term, out), k)
        out = _optimum(kind)(out, term)
    if first is None:
        return out
    change = _gradient_carrier(a).gather(1, first) + _gradient_carrier(b).gather(
        0, first
    )
    # Zero gradient where no term contributes; NaN where the output is NaN.
    counts = torch.ones_like(out).masked_fill(out != out, math.nan)
    return out - change * counts.masked_fill(out == _zero(kind), 0)


def closure(d: torch.Tensor, kind: str) -> torch.Tensor:
    """Run the Floyd-Warshall algorithm; stop at the first improving cycle."""
    n, better, steps = len(d), _optimum(kind), d.detach()
    on = torch.eye(n, dtype=torch.bool, device=d.device)
    out = torch.where(on, better(steps, torch.zeros_like(steps)), steps)
    before = None  # the vertex before j on the optimal walk from i to j
    if _needs_derivative(d):
        before = torch.arange(n, device=d.device)[:, None].repeat(1, n)
    for k in range(n):
        if out[k, k] != 0:
            raise ValueError(
                f"vertex {k} lies on a cycle of weight {out[k, k].item()}, which "
                "improves in every round: the optimal walk does not exist."
            )
        through = out[:, k, None] + out[k]
        if before is not None:
            before = torch.where(_is_better(kind, through, out), before[k], before)
        out = better(out, through)
    if before is None:
        return out
    # Pointer doubling: each round follows the walks twice as far from their ends.
    change = _gradient_carrier(d).gather(0, before).masked_fill(on, 0)
    for _ in range((n - 1).bit_length()):
        change = change + change.gather(1, before)
        before = before.gather(1, before)
    return out - change.masked_fill(out == _zero(kind), 0)


def polynomial(
    coefficients: torch.Tensor,
    exponents: torch.Tensor,
    points: torch.Tensor,
    kind: str,
) -> torch.Tensor:
    """Evaluate the optimal monomial at each point."""
    all_three = coefficients, exponents, points
    dtype = functools.reduce(torch.promote_types, (a.dtype for a in all_three))
    coefficients, exponents, points = (a.to(dtype) for a in all_three)
    optimum = {"max": torch.amax, "min": torch.amin}[kind]
    if not has_infinity(points):  # integers are finite
        return optimum(points @ exponents.T + coefficients, dim=1)
    zero = _zero(kind)
    is_zero = points == zero
    if (is_zero.any(dim=0) & (exponents < 0).any(dim=0)).any():
        raise ValueError(
            "polynomial: a negative power of an infinite point is undefined."
        )
    finite = points.masked_fill(is_zero, 0)
    terms = finite @ exponents.T + coefficients
    has_zero_factor = is_zero.to(points.dtype) @ (exponents != 0).to(points.dtype).T
    terms = terms.masked_fill(has_zero_factor > 0, zero)
    return optimum(terms, dim=1)


def convolve(short: torch.Tensor, long: torch.Tensor, kind: str) -> torch.Tensor:
    """Make one pass over the long sequence for each element of the short one."""
    better, m = _optimum(kind), len(long)
    out = short[0] + long
    for i in range(1, len(short)):
        shifted = short[i] + long
        inside = better(out[i:], shifted[: m - 1])
        out = torch.cat([out[:i], inside, shifted[m - 1 :]])
    return out


def _zero(kind: str) -> float:
    return {"max": -math.inf, "min": math.inf}[kind]


def _optimum(kind: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return {"max": torch.maximum, "min": torch.minimum}[kind]


def _needs_derivative(*tensors: torch.Tensor) -> bool:
    """Whether autograd, in reverse or forward mode, follows one of the tensors."""
    backward = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return backward or any(
        forward_ad.unpack_dual(t).tangent is not None for t in tensors
    )


def _is_better(kind: str, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return {"max": torch.gt, "min": torch.lt}[kind](new, old)


def _gradient_carrier(a: torch.Tensor) -> torch.Tensor:
    """Return zeros with the derivative of `-a`; subtracting them keeps even -0."""
    return (a.detach() - a).masked_fill(~a.detach().isfinite(), 0)
