"""The torch engine of tropical operations; imported when a tensor is first met.

torch's maximum splits the gradient among equal terms, and gives one even to a row that
is all zero. So products and closures record the first optimal term, and subtract a
number that is 0 but has the negative of that term's derivative: this changes no bit of
the result, and gives autograd the subgradient of JAX.
"""

import functools
import math
from collections.abc import Callable

import torch
from jaxtyping import Int, Num
from torch.autograd import forward_ad

from ._batches import of_batches


def has_infinity(a: Num[torch.Tensor, "..."]) -> bool:
    """Whether the dtype has infinities."""
    return a.dtype.is_floating_point


def contains(a: Num[torch.Tensor, "..."], which: float) -> bool:
    """Whether the tensor contains this infinity; False under `torch.func.vmap`."""
    return has_infinity(a) and _is_true((a == which).any())


def _is_true(condition: torch.Tensor) -> bool:
    # As values that JAX traces, those that `vmap` maps over cannot be looked at.
    try:
        return bool(condition)
    except RuntimeError as e:
        if "vmap" in str(e) or ".item()" in str(e):
            return False
        raise


def contains_nan(a: Num[torch.Tensor, "..."]) -> bool:
    """Whether the tensor contains NaN; False under `torch.func.vmap`."""
    return _is_true((a != a).any())


def reshape(a: Num[torch.Tensor, "..."], shape: tuple[int, ...]) -> torch.Tensor:
    """Change the shape."""
    return a.reshape(shape)


def identity(
    shape: tuple[int, ...], like: Num[torch.Tensor, "..."], kind: str
) -> Num[torch.Tensor, "..."]:
    """Return 0 on the diagonal and the zero elsewhere."""
    out = like.new_full(shape, _zero(kind))
    out.diagonal(dim1=-2, dim2=-1).zero_()
    return out


@of_batches(torch)
def matmul(
    a: Num[torch.Tensor, "n k"], b: Num[torch.Tensor, "k m"], kind: str
) -> Num[torch.Tensor, "n m"]:
    """Compute the product, one k at a time."""
    if a.shape[1] == 0:
        return a.new_full((a.shape[0], b.shape[1]), _zero(kind))
    # Detached, because autograd would store all n * k * m terms for its backward pass.
    left, right = a.detach(), b.detach()
    out = left[:, :1] + right[0]
    first = torch.zeros_like(out, dtype=torch.long) if _needs_derivative(a, b) else None
    for k in range(1, a.shape[1]):
        term = left[:, k, None] + right[k]
        if first is not None:
            # Only a strictly better term: the first of equal ones keeps the gradient,
            # as in JAX.
            first = torch.where(_is_better(kind, term, out), k, first)
        out = _optimum(kind)(out, term)
    if first is None:
        return out
    change = _gradient_carrier(a).gather(1, first) + _gradient_carrier(b).gather(
        0, first
    )
    # Zero gradient where no term contributes; NaN where the output is NaN.
    counts = torch.ones_like(out).masked_fill(out != out, math.nan)
    return out - change * counts.masked_fill(out == _zero(kind), 0)


@of_batches(torch)
def matmul_with_argument(
    a: Num[torch.Tensor, "n k"], b: Num[torch.Tensor, "k m"], kind: str
) -> tuple[Num[torch.Tensor, "n m"], Int[torch.Tensor, "n m"]]:
    """Compute the product and the first k of each optimum; -1 for no term."""
    out = matmul(a, b, kind)
    left, right, found = a.detach(), b.detach(), out.detach()
    which = torch.full_like(found, -1, dtype=torch.long)
    for k in range(a.shape[1] - 1, -1, -1):
        which = torch.where(left[:, k, None] + right[k] == found, k, which)
    return out, which.masked_fill(found == _zero(kind), -1)


def mark_missing(
    before: Int[torch.Tensor, "*batch n n"],
    out: Num[torch.Tensor, "*batch n n"],
    kind: str,
) -> Int[torch.Tensor, "*batch n n"]:
    """Write -1 where no edge leads to j: from j itself, and where no walk does."""
    missing = torch.eye(out.shape[-1], dtype=torch.bool, device=out.device)
    if has_infinity(out):
        # Not in place: `vmap` may map over `out`, and never maps over the diagonal.
        missing = missing | (out.detach() == _zero(kind))
    return before.masked_fill(missing, -1)


def viterbi(
    scores: Num[torch.Tensor, "batch steps states"],
    transitions: Num[torch.Tensor, "states states"],
    kind: str,
) -> tuple[Int[torch.Tensor, "batch steps"], Num[torch.Tensor, " batch"]]:
    """Find the optimal sequence of states of each batch."""
    best = {"max": torch.max, "min": torch.min}[kind]
    total = scores[:, 0]
    before: list[torch.Tensor] = []
    for t in range(1, scores.shape[1]):
        # Of equal terms the first, which `torch.max` does not guarantee.
        terms = total[:, :, None] + transitions
        before.append(_first(terms, best(terms, dim=1, keepdim=True).values))
        total = terms.gather(1, before[-1][:, None])[:, 0] + scores[:, t]
    path = [_first(total, best(total, dim=1, keepdim=True).values)[:, None]]
    weight = total.gather(1, path[0])[:, 0]
    for came in reversed(before):
        path.append(came.gather(1, path[-1]))
    return torch.cat(path[::-1], dim=1), weight


def _first(terms: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """Return the first of the best terms along axis 1; NaN is the best, as in NumPy."""
    return ((terms == best) | (terms != terms)).to(torch.int8).argmax(dim=1)


@of_batches(torch)
def predecessors(d: Num[torch.Tensor, "n n"], kind: str) -> Int[torch.Tensor, "n n"]:
    """Return the vertex before j on the optimal walk from i; i itself for none."""
    n, out = len(d), d.detach()
    on = torch.eye(n, dtype=torch.bool, device=d.device)
    out = torch.where(on, _optimum(kind)(out, torch.zeros_like(out)), out)
    before = torch.arange(n, device=d.device)[:, None].repeat(1, n)
    for k in range(n):
        through = out[:, k, None] + out[k]
        better = _is_better(kind, through, out)
        before = torch.where(better, before[k], before)
        out = torch.where(better, through, out)
    return before


@of_batches(torch)
def closure(d: Num[torch.Tensor, "n n"], kind: str) -> Num[torch.Tensor, "n n"]:
    """Run the Floyd-Warshall algorithm; stop at the first improving cycle."""
    n, better, steps = len(d), _optimum(kind), d.detach()
    on = torch.eye(n, dtype=torch.bool, device=d.device)
    out = torch.where(on, better(steps, torch.zeros_like(steps)), steps)
    for k in range(n):
        if _is_true(out[k, k] != 0):
            raise ValueError(
                f"vertex {k} lies on a cycle of weight {out[k, k].item()}, which "
                "improves in every round: the optimal walk does not exist."
            )
        out = better(out, out[:, k, None] + out[k])
    if not _needs_derivative(d):
        return out
    before = predecessors(d, kind)
    # Pointer doubling: each round follows the walks twice as far from their ends.
    change = _gradient_carrier(d).gather(0, before).masked_fill(on, 0)
    for _ in range((n - 1).bit_length()):
        change = change + change.gather(1, before)
        before = before.gather(1, before)
    return out - change.masked_fill(out == _zero(kind), 0)


def polynomial(
    coefficients: Num[torch.Tensor, " monomials"],
    exponents: Num[torch.Tensor, "monomials variables"],
    points: Num[torch.Tensor, "points variables"],
    kind: str,
) -> Num[torch.Tensor, " points"]:
    """Evaluate the optimal monomial at each point."""
    all_three = coefficients, exponents, points
    dtype = functools.reduce(torch.promote_types, (a.dtype for a in all_three))
    coefficients, exponents, points = (a.to(dtype) for a in all_three)
    optimum = {"max": torch.amax, "min": torch.amin}[kind]
    if not has_infinity(points):  # integers are finite
        return optimum(points @ exponents.T + coefficients, dim=1)
    zero = _zero(kind)
    is_zero = points == zero
    if _is_true((is_zero.any(dim=0) & (exponents < 0).any(dim=0)).any()):
        raise ValueError(
            "polynomial: a negative power of an infinite point is undefined."
        )
    finite = points.masked_fill(is_zero, 0)
    terms = finite @ exponents.T + coefficients
    has_zero_factor = is_zero.to(points.dtype) @ (exponents != 0).to(points.dtype).T
    terms = terms.masked_fill(has_zero_factor > 0, zero)
    return optimum(terms, dim=1)


def convolve(
    short: Num[torch.Tensor, " n"], long: Num[torch.Tensor, " m"], kind: str
) -> Num[torch.Tensor, " n+m-1"]:
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
