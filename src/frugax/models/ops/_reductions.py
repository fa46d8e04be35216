"""Many numbers to one, along axes.

`axis` is an int, a tuple of ints, or None for all. Sums and products of booleans and of
integers under 32 bits are kept in int32; indices are int32.
"""

from collections.abc import Sequence
from typing import Any

from ._table import op

Axis = int | Sequence[int] | None


@op(promote="same", name="sum")
def sum_(xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Sum; of nothing 0."""
    return xp.sum(input, axis, keepdims=keepdims)


@op(promote="float")
def mean(xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Arithmetic mean; of nothing NaN."""
    return xp.mean(input, axis, keepdims=keepdims)


@op(promote="same")
def prod(xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Product; of nothing 1."""
    return xp.prod(input, axis, keepdims=keepdims)


@op(promote="same", name="max")
def max_(xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Largest; NaN if there is one; ties share the gradient evenly."""
    return xp.max(input, axis, keepdims=keepdims)


@op(promote="same", name="min")
def min_(xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Smallest; NaN if there is one; ties share the gradient evenly."""
    return xp.min(input, axis, keepdims=keepdims)


@op(promote="same")
def argmax(
    xp: Any, input: Any, *, axis: int | None = None, keepdims: bool = False
) -> Any:
    """Index of the first largest, of the first NaN if there is one."""
    return xp.argmax(input, axis, keepdims=keepdims)


@op(promote="same")
def argmin(
    xp: Any, input: Any, *, axis: int | None = None, keepdims: bool = False
) -> Any:
    """Index of the first smallest, of the first NaN if there is one."""
    return xp.argmin(input, axis, keepdims=keepdims)


@op(promote="float")
def var(
    xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False, ddof: int = 0
) -> Any:
    """Squared distances from the mean, summed and divided by n - ddof."""
    return xp.var(input, axis, keepdims=keepdims, ddof=ddof)


@op(promote="float")
def std(
    xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False, ddof: int = 0
) -> Any:
    """Square root of `var`; the gradient is 0 where it is 0."""
    return safe_sqrt(xp, xp.var(input, axis, keepdims=keepdims, ddof=ddof))


@op(promote="same", name="any")
def any_(xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether some entry is not 0."""
    return xp.any(input, axis, keepdims=keepdims)


@op(promote="same", name="all")
def all_(xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether no entry is 0."""
    return xp.all(input, axis, keepdims=keepdims)


@op(promote="float")
def logsumexp(xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """log(sum(exp(input))) without overflow; of nothing -inf."""
    return xp.logsumexp(input, axis, keepdims=keepdims)


@op(promote="float")
def norm(
    xp: Any,
    input: Any,
    *,
    ord: int | str = 2,
    axis: Axis = None,
    keepdims: bool = False,
) -> Any:
    """Length of the vector of all entries along `axis`; ord is 1, 2 or "inf".

    The gradient is 0 where the length is 0.

    Raises:
        ValueError: there is no such norm.
    """
    if ord == 2:
        return safe_sqrt(xp, xp.sum(xp.square(input), axis, keepdims=keepdims))
    if ord == 1:
        return xp.sum(xp.absolute(input), axis, keepdims=keepdims)
    if ord == "inf":
        return xp.max(xp.absolute(input), axis, keepdims=keepdims)
    raise ValueError(f'norm: ord must be 1, 2 or "inf", got {ord!r}.')


@op(promote="same")
def count_nonzero(
    xp: Any, input: Any, *, axis: Axis = None, keepdims: bool = False
) -> Any:
    """How many entries are not 0."""
    return xp.sum(xp.cast(input, "bool"), axis, keepdims=keepdims)


@op(promote="same")
def cumsum(xp: Any, input: Any, *, axis: int | None = None) -> Any:
    """Running sum along one axis; of the flattened array if None."""
    return xp.cumsum(input, axis)


@op(promote="same")
def cumprod(xp: Any, input: Any, *, axis: int | None = None) -> Any:
    """Running product along one axis; of the flattened array if None."""
    return xp.cumprod(input, axis)


@op(promote="float")
def median(
    xp: Any, input: Any, *, axis: int | None = None, keepdims: bool = False
) -> Any:
    """Middle of the sorted entries along one axis or of all; NaN if one is.

    Of an even number the mean of the two in the middle. The length must be known.
    """
    if axis is None:
        flat = xp.reshape(input, (-1,))
        middle = _median_of_last(xp, flat)
        return xp.reshape(middle, (1,) * input.ndim) if keepdims else middle
    last = xp.moveaxis(input, axis, -1)
    middle = _median_of_last(xp, last)
    return xp.expand_dims(middle, axis) if keepdims else middle


def _median_of_last(xp: Any, x: Any) -> Any:
    n = x.shape[-1]
    if n == 0:
        return xp.mean(x, -1)  # NaN, in the right shape
    ordered = xp.sort(x, -1)
    pick = lambda i: xp.getitem(ordered, (..., i))
    middle = pick(n // 2)
    if n % 2 == 0:
        # Halved before they are added: the sum of two halves cannot overflow.
        middle = pick(n // 2 - 1) * 0.5 + middle * 0.5
    largest = pick(n - 1)  # NaN sorts last
    return xp.where(xp.isnan(largest), largest, middle)


def safe_sqrt(xp: Any, x: Any) -> Any:
    """Square root whose gradient at 0 is 0, not infinite."""
    zero = xp.equal(x, 0)
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, x)))
