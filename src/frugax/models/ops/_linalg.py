"""Ops of linear algebra: matrix products, factorisations and linear systems.

For a singular or indefinite matrix the result is NaN or infinite on both libraries,
since a compiled program cannot raise. Float16 and bfloat16 are factorised in float32.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Shaped

from ._table import op

Matrices = Shaped[Any, "*batch rows rows"]


@op(promote="same")
def matmul(xp: Any, left: Any, right: Any) -> Any:
    """Matrix product over the last two axes, stacked over those in front, as NumPy's @.

    A vector is a row on the left and a column on the right; that axis is removed.

    Raises:
        ValueError: one side is a single number.
    """
    for side, x in (("left", left), ("right", right)):
        if getattr(x, "ndim", 0) == 0:
            raise ValueError(
                f"matmul: {side} is a single number; use multiply for that."
            )
    return xp.matmul(left, right)


@op(promote="same")
def dot(xp: Any, left: Any, right: Any) -> Any:
    """Sum over the last axis of left and the last but one of right, as NumPy's dot."""
    if left.ndim == 0 or right.ndim == 0:
        return xp.multiply(left, right)
    return xp.tensordot(left, right, ((left.ndim - 1,), (max(right.ndim - 2, 0),)))


@op(promote="same")
def outer(
    xp: Any, left: Shaped[Any, "*left"], right: Shaped[Any, "*right"]
) -> Shaped[Any, "rows columns"]:
    """All products of an entry of left and one of right; both are flattened."""
    return xp.multiply(xp.reshape(left, (-1, 1)), xp.reshape(right, (1, -1)))


@op(promote="same")
def einsum(xp: Any, *inputs: Any, equation: str) -> Any:
    """Sum of products by Einstein's convention, such as "bij,bjk->bik"."""
    return xp.einsum(equation, *inputs)


@op(promote="same")
def tensordot(xp: Any, left: Any, right: Any, *, axes: int | Sequence[Any] = 2) -> Any:
    """Sum of products over the last `axes` of left and the first of right.

    `axes` may be a pair of axes, or of tuples of axes, one for each side.
    """
    if not isinstance(axes, int):
        axes = tuple((a,) if isinstance(a, int) else tuple(a) for a in axes)
    return xp.tensordot(left, right, axes)


@op(promote="same")
def trace(
    xp: Any, input: Any, *, offset: int = 0, axis1: int = 0, axis2: int = 1
) -> Any:
    """Sum along a diagonal of two axes."""
    return xp.sum(xp.diagonal(input, offset, axis1, axis2), -1)


@op(promote="float")
def cholesky(xp: Any, input: Matrices) -> Matrices:
    """Lower triangular L with L L^T the symmetric part of input; NaN without one."""
    return xp.cast(xp.cholesky(xp.widened(input)), xp.dtype_of(input))


@op(promote="float")
def solve(xp: Any, left: Matrices, right: Shaped[Any, "..."]) -> Shaped[Any, "..."]:
    """Solve left x = right for x; a `right` of one axis is a vector."""
    made = xp.solve(xp.widened(left), xp.widened(right))
    return xp.cast(made, xp.dtype_of(left))


@op(promote="float")
def inverse(xp: Any, input: Matrices) -> Matrices:
    """Inverse of square matrices."""
    return xp.cast(xp.inverse(xp.widened(input)), xp.dtype_of(input))


@op(promote="float")
def determinant(xp: Any, input: Matrices) -> Shaped[Any, "*batch"]:
    """Determinant of square matrices."""
    return xp.cast(xp.determinant(xp.widened(input)), xp.dtype_of(input))
