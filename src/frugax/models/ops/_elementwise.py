"""Arithmetic, comparison, logic and bits: one number in, one number out.

All broadcast as NumPy does, also between ranks.
"""

from typing import Any

from ._table import op

# --- arithmetic -------------------------------------------------------------------


@op(promote="same")
def add(xp: Any, left: Any, right: Any) -> Any:
    """`left` + right; of booleans: or."""
    return xp.add(left, right)


@op(promote="same")
def subtract(xp: Any, left: Any, right: Any) -> Any:
    """`left` - right."""
    return xp.subtract(left, right)


@op(promote="same")
def multiply(xp: Any, left: Any, right: Any) -> Any:
    """`left` * right; of booleans: and."""
    return xp.multiply(left, right)


@op(promote="float")
def divide(xp: Any, left: Any, right: Any) -> Any:
    """`left` / right; of integers a float."""
    return xp.divide(left, right)


@op(promote="same")
def floor_divide(xp: Any, left: Any, right: Any) -> Any:
    """`left` / right rounded down; an integer by 0 gives 0."""
    return xp.floor_divide(left, right)


@op(promote="same")
def remainder(xp: Any, left: Any, right: Any) -> Any:
    """What `floor_divide` leaves, with right's sign; an integer by 0 gives 0."""
    return xp.remainder(left, right)


@op(promote="same")
def power(xp: Any, left: Any, right: Any) -> Any:
    """`left` to the power of right; integers stay integers, 1 / left rounded to 0."""
    return xp.power(left, right)


@op(promote="same")
def maximum(xp: Any, left: Any, right: Any) -> Any:
    """The larger of two; NaN if one is; at a tie each gets half of the gradient."""
    return xp.maximum(left, right)


@op(promote="same")
def minimum(xp: Any, left: Any, right: Any) -> Any:
    """The smaller of two; NaN if one is; at a tie each gets half of the gradient."""
    return xp.minimum(left, right)


@op(promote="float")
def arctan2(xp: Any, left: Any, right: Any) -> Any:
    """Angle of the point (x=right, y=left), in (-pi, pi]."""
    return xp.arctan2(left, right)


@op(promote="float")
def logaddexp(xp: Any, left: Any, right: Any) -> Any:
    """log(exp(left) + exp(right)) without overflow."""
    return xp.logaddexp(left, right)


@op(promote="same")
def negative(xp: Any, input: Any) -> Any:
    """-input."""
    return xp.negative(input)


@op(promote="same")
def absolute(xp: Any, input: Any) -> Any:
    """|input|, with gradient 0 at 0."""
    return xp.absolute(input)


@op(promote="same")
def sign(xp: Any, input: Any) -> Any:
    """-1, 0 or 1; NaN for NaN."""
    return xp.sign(input)


@op(promote="float")
def reciprocal(xp: Any, input: Any) -> Any:
    """1 / input."""
    return xp.reciprocal(input)


@op(promote="same")
def square(xp: Any, input: Any) -> Any:
    """`input` * input."""
    return xp.square(input)


@op(promote="float")
def sqrt(xp: Any, input: Any) -> Any:
    """Square root; NaN below 0."""
    return xp.sqrt(input)


@op(promote="float")
def rsqrt(xp: Any, input: Any) -> Any:
    """1 / sqrt(input)."""
    return xp.rsqrt(input)


@op(promote="float")
def exp(xp: Any, input: Any) -> Any:
    """The number e to the power of input."""
    return xp.exp(input)


@op(promote="float")
def expm1(xp: Any, input: Any) -> Any:
    """exp(input) - 1, exact near 0."""
    return xp.expm1(input)


@op(promote="float")
def log(xp: Any, input: Any) -> Any:
    """Natural logarithm; NaN below 0, -inf at 0."""
    return xp.log(input)


@op(promote="float")
def log1p(xp: Any, input: Any) -> Any:
    """log(1 + input), exact near 0."""
    return xp.log1p(input)


@op(promote="float")
def log2(xp: Any, input: Any) -> Any:
    """Logarithm to base 2."""
    return xp.log2(input)


@op(promote="float")
def sin(xp: Any, input: Any) -> Any:
    """Sine of radians."""
    return xp.sin(input)


@op(promote="float")
def cos(xp: Any, input: Any) -> Any:
    """Cosine of radians."""
    return xp.cos(input)


@op(promote="float")
def tan(xp: Any, input: Any) -> Any:
    """Tangent of radians."""
    return xp.tan(input)


@op(promote="float")
def sinh(xp: Any, input: Any) -> Any:
    """Hyperbolic sine."""
    return xp.sinh(input)


@op(promote="float")
def cosh(xp: Any, input: Any) -> Any:
    """Hyperbolic cosine."""
    return xp.cosh(input)


@op(promote="float")
def tanh(xp: Any, input: Any) -> Any:
    """Hyperbolic tangent."""
    return xp.tanh(input)


@op(promote="float")
def arcsin(xp: Any, input: Any) -> Any:
    """Inverse of sin, in [-pi/2, pi/2]; NaN outside [-1, 1]."""
    return xp.arcsin(input)


@op(promote="float")
def arccos(xp: Any, input: Any) -> Any:
    """Inverse of cos, in [0, pi]; NaN outside [-1, 1]."""
    return xp.arccos(input)


@op(promote="float")
def arctan(xp: Any, input: Any) -> Any:
    """Inverse of tan, in [-pi/2, pi/2]."""
    return xp.arctan(input)


@op(promote="float")
def arcsinh(xp: Any, input: Any) -> Any:
    """Inverse of sinh."""
    return xp.arcsinh(input)


@op(promote="float")
def arccosh(xp: Any, input: Any) -> Any:
    """Inverse of cosh; NaN below 1."""
    return xp.arccosh(input)


@op(promote="float")
def arctanh(xp: Any, input: Any) -> Any:
    """Inverse of tanh; NaN outside [-1, 1]."""
    return xp.arctanh(input)


@op(promote="float")
def erf(xp: Any, input: Any) -> Any:
    """Error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0."""
    return xp.erf(input)


@op(promote="same")
def floor(xp: Any, input: Any) -> Any:
    """Rounded down; integers stay as they are."""
    return xp.floor(input)


@op(promote="same")
def ceil(xp: Any, input: Any) -> Any:
    """Rounded up; integers stay as they are."""
    return xp.ceil(input)


@op(promote="same")
def trunc(xp: Any, input: Any) -> Any:
    """Rounded towards 0; integers stay as they are."""
    return xp.trunc(input)


@op(promote="same", name="round")
def round_(xp: Any, input: Any, *, decimals: int = 0) -> Any:
    """Rounded to decimals, halves to the even neighbour."""
    return xp.round(input, decimals=decimals)


@op()
def clip(
    xp: Any, input: Any, *, min: float | None = None, max: float | None = None
) -> Any:
    """Within [min, max]; the gradient is 0 at the bounds and beyond.

    Raises:
        ValueError: `min` is above `max`.
    """
    if min is not None and max is not None and min > max:
        raise ValueError(f"clip: min={min!r} is above max={max!r}.")
    (x, _, _) = xp.promote((input, min, max))
    return xp.clip(x, min, max)


@op(promote="same")
def nan_to_num(
    xp: Any,
    input: Any,
    *,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Any:
    """Numbers for NaN and infinities: 0 and the dtype's largest, unless given."""
    return xp.nan_to_num(input, nan=nan, posinf=posinf, neginf=neginf)


@op()
def where(xp: Any, condition: Any, left: Any, right: Any) -> Any:
    """`left` where the condition is not 0, right elsewhere."""
    left, right = xp.promote((left, right))
    (condition,) = xp.promote((condition,))
    return xp.where(xp.cast(condition, "bool"), left, right)


# --- comparison -------------------------------------------------------------------


@op(promote="same")
def equal(xp: Any, left: Any, right: Any) -> Any:
    """`left` == right, as booleans; NaN equals nothing."""
    return xp.equal(left, right)


@op(promote="same")
def not_equal(xp: Any, left: Any, right: Any) -> Any:
    """`left` != right, as booleans."""
    return xp.not_equal(left, right)


@op(promote="same")
def less(xp: Any, left: Any, right: Any) -> Any:
    """`left` < right, as booleans."""
    return xp.less(left, right)


@op(promote="same")
def less_equal(xp: Any, left: Any, right: Any) -> Any:
    """`left` <= right, as booleans."""
    return xp.less_equal(left, right)


@op(promote="same")
def greater(xp: Any, left: Any, right: Any) -> Any:
    """`left` > right, as booleans."""
    return xp.greater(left, right)


@op(promote="same")
def greater_equal(xp: Any, left: Any, right: Any) -> Any:
    """`left` >= right, as booleans."""
    return xp.greater_equal(left, right)


@op(promote="float")
def isnan(xp: Any, input: Any) -> Any:
    """Whether each entry is NaN."""
    return xp.isnan(input)


@op(promote="float")
def isinf(xp: Any, input: Any) -> Any:
    """Whether each entry is an infinity."""
    return xp.isinf(input)


@op(promote="float")
def isfinite(xp: Any, input: Any) -> Any:
    """Whether each entry is neither NaN nor an infinity."""
    return xp.isfinite(input)


# --- logic and bits ---------------------------------------------------------------


@op(promote="same")
def logical_and(xp: Any, left: Any, right: Any) -> Any:
    """Whether both are not 0."""
    return xp.logical_and(left, right)


@op(promote="same")
def logical_or(xp: Any, left: Any, right: Any) -> Any:
    """Whether one is not 0."""
    return xp.logical_or(left, right)


@op(promote="same")
def logical_xor(xp: Any, left: Any, right: Any) -> Any:
    """Whether exactly one is not 0."""
    return xp.logical_xor(left, right)


@op(promote="same")
def logical_not(xp: Any, input: Any) -> Any:
    """Whether each entry is 0."""
    return xp.logical_not(input)


@op(promote="same")
def bitwise_and(xp: Any, left: Any, right: Any) -> Any:
    """Bits that are set in both integers."""
    return xp.bitwise_and(left, right)


@op(promote="same")
def bitwise_or(xp: Any, left: Any, right: Any) -> Any:
    """Bits that are set in one of two integers."""
    return xp.bitwise_or(left, right)


@op(promote="same")
def bitwise_xor(xp: Any, left: Any, right: Any) -> Any:
    """Bits that are set in exactly one of two integers."""
    return xp.bitwise_xor(left, right)


@op(promote="same")
def bitwise_not(xp: Any, input: Any) -> Any:
    """All bits of an integer turned over; of a boolean: not."""
    return xp.bitwise_not(input)


@op(promote="same")
def left_shift(xp: Any, left: Any, right: Any) -> Any:
    """`left` * 2^right, for 0 <= right < the number of bits."""
    return xp.left_shift(left, right)


@op(promote="same")
def right_shift(xp: Any, left: Any, right: Any) -> Any:
    """`left` / 2^right rounded down, for 0 <= right < the number of bits."""
    return xp.right_shift(left, right)
