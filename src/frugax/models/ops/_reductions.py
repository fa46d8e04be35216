"""Ops that reduce over axes (sum, max, std ...) or accumulate along one (cumsum).

`axis` is an int, a tuple of ints, or None for all. Sums and products of booleans and of
integers of fewer than 32 bits are int32, as are indices.
"""

import math
from collections.abc import Sequence
from typing import Any

from jaxtyping import Shaped

from ._table import Promotion, op

Array = Shaped[Any, "*shape"]
Reduced = Shaped[Any, "*rest"]
Axis = int | Sequence[int] | None


# Those that are the library's own, by the dtype to which their input is promoted.
_SAME = {
    "sum": "Sum; 0 for an empty array.",
    "prod": "Product; 1 for an empty array.",
    "max": "Largest entry, or NaN; ties share the gradient evenly.",
    "min": "Smallest entry, or NaN; ties share the gradient evenly.",
    "any": "Whether any entry is not 0.",
    "all": "Whether no entry is 0.",
}
_FLOAT = {
    "mean": "Arithmetic mean; NaN for an empty array.",
    "logsumexp": "log(sum(exp(input))) without overflow; -inf for an empty array.",
}


def _declare(name: str, doc: str, promote: Promotion) -> None:
    def body(
        xp: Any, input: Array, *, axis: Axis = None, keepdims: bool = False
    ) -> Reduced:
        return getattr(xp, name)(input, axis, keepdims=keepdims)

    body.__name__, body.__doc__ = name, doc
    op(promote=promote)(body)


for _name, _doc in _SAME.items():
    _declare(_name, _doc, "same")
for _name, _doc in _FLOAT.items():
    _declare(_name, _doc, "float")


@op(promote="same")
def argmax(
    xp: Any, input: Array, *, axis: int | None = None, keepdims: bool = False
) -> Reduced:
    """Index of the first largest entry, or of the first NaN."""
    return xp.argmax(input, axis, keepdims=keepdims)


@op(promote="same")
def argmin(
    xp: Any, input: Array, *, axis: int | None = None, keepdims: bool = False
) -> Reduced:
    """Index of the first smallest entry, or of the first NaN."""
    return xp.argmin(input, axis, keepdims=keepdims)


@op(promote="float")
def var(
    xp: Any, input: Array, *, axis: Axis = None, keepdims: bool = False, ddof: int = 0
) -> Reduced:
    """Squared distances from the mean, summed and divided by n - ddof."""
    return xp.var(input, axis, keepdims=keepdims, ddof=ddof)


@op(promote="float")
def std(
    xp: Any, input: Array, *, axis: Axis = None, keepdims: bool = False, ddof: int = 0
) -> Reduced:
    """Square root of `var`; the gradient is 0 where it is 0."""
    return safe_sqrt(xp, xp.var(input, axis, keepdims=keepdims, ddof=ddof))


@op(promote="float")
def norm(
    xp: Any,
    input: Array,
    *,
    ord: float | str = 2,
    axis: Axis = None,
    keepdims: bool = False,
) -> Reduced:
    """Length of the vector of all entries along `axis`; ord is a number or "inf".

    The gradient is 0 where the length is 0.

    Raises:
        ValueError: there is no such norm.
    """
    if ord in (2, "fro"):  # codespell:ignore fro
        # A length has a kink at 0. 0 is one of its subgradients, and keeps training
        # finite.
        return safe_sqrt(xp, xp.sum(xp.square(input), axis, keepdims=keepdims))
    if ord == 1:
        return xp.sum(xp.absolute(input), axis, keepdims=keepdims)
    if ord in ("inf", math.inf):
        return xp.max(xp.absolute(input), axis, keepdims=keepdims)
    if isinstance(ord, (int, float)) and ord > 0:
        powers = xp.power(xp.absolute(input), ord)
        return xp.power(xp.sum(powers, axis, keepdims=keepdims), 1 / ord)
    raise ValueError(f'norm: ord must be a number above 0 or "inf", got {ord!r}.')


@op(promote="same")
def count_nonzero(
    xp: Any, input: Array, *, axis: Axis = None, keepdims: bool = False
) -> Reduced:
    """The number of entries that are not 0."""
    # Sums of booleans are int32: see `sum_dtype`.
    return xp.sum(xp.cast(input, "bool"), axis, keepdims=keepdims)


@op(promote="same")
def cumsum(xp: Any, input: Array, *, axis: int | None = None) -> Reduced:
    """Running sum along one axis; of the flattened array if None."""
    return xp.cumsum(input, axis)


@op(promote="same")
def cumprod(xp: Any, input: Array, *, axis: int | None = None) -> Reduced:
    """Running product along one axis; of the flattened array if None."""
    return xp.cumprod(input, axis)


@op(promote="float")
def median(
    xp: Any, input: Array, *, axis: int | None = None, keepdims: bool = False
) -> Reduced:
    """Middle of the sorted entries along one axis or of all; NaN if one is.

    For an even number of entries it is the mean of the middle two. The length must be
    known.
    """
    if axis is None:
        flat = xp.reshape(input, (-1,))
        middle = _median_of_last(xp, flat)
        if keepdims:
            return xp.reshape(middle, (1,) * input.ndim)
        return middle
    last = xp.moveaxis(input, axis, -1)
    middle = _median_of_last(xp, last)
    if keepdims:
        return xp.expand_dims(middle, axis)
    return middle


def _median_of_last(xp: Any, x: Any) -> Any:
    n = x.shape[-1]
    if n == 0:
        return xp.mean(x, -1)  # NaN, in the right shape
    ordered = xp.sort(x, -1)
    pick = lambda i: xp.getitem(ordered, (..., i))
    middle = pick(n // 2)
    if n % 2 == 0:
        # Halved before they are added, so that the sum cannot overflow.
        middle = pick(n // 2 - 1) * 0.5 + middle * 0.5
    largest = pick(n - 1)  # NaN sorts last
    return xp.where(xp.isnan(largest), largest, middle)


def safe_sqrt(xp: Any, x: Any) -> Any:
    """Square root with gradient 0 at 0 instead of infinity."""
    # Two selections: with the outer one alone, the gradient would be 0 * inf = NaN.
    zero = xp.equal(x, 0)
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, x)))
