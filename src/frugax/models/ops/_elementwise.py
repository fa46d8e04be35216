"""Elementwise ops: arithmetic, comparison, logic and bits, which broadcast.

All broadcast as NumPy does, also between ranks. Most ops only forward to the namespace,
so they are declared by a table of names and descriptions.
"""

from typing import Any

from jaxtyping import Bool, Shaped

from ._table import Promotion, op

Array = Shaped[Any, "*shape"]


def declare_unary(name: str, doc: str, promote: Promotion) -> None:
    """Add an op of one array that is the namespace's own function of that name."""

    def body(xp: Any, input: Array) -> Array:
        return getattr(xp, name)(input)

    body.__name__, body.__doc__ = name, doc
    op(promote=promote)(body)


def _declare_binary(name: str, doc: str, promote: Promotion) -> None:
    def body(
        xp: Any, left: Shaped[Any, "*#shape"], right: Shaped[Any, "*#shape"]
    ) -> Array:
        return getattr(xp, name)(left, right)

    body.__name__, body.__doc__ = name, doc
    op(promote=promote)(body)


# Ops whose result has the dtype of the input, integers included.
_UNARY = {
    "negative": "-input.",
    "absolute": "|input|, with gradient 0 at 0.",
    "sign": "-1, 0 or 1; NaN for NaN.",
    "square": "`input` * input.",
    "floor": "Rounded down; integers stay as they are.",
    "ceil": "Rounded up; integers stay as they are.",
    "trunc": "Rounded towards 0; integers stay as they are.",
    "logical_not": "Whether each entry is 0.",
    "bitwise_not": "All bits of an integer inverted; of a boolean: not.",
}

# Ops that turn integers into floats.
_UNARY_FLOAT = {
    "reciprocal": "1 / input.",
    "sqrt": "Square root; NaN below 0.",
    "rsqrt": "1 / sqrt(input).",
    "exp": "The number e to the power of input.",
    "expm1": "exp(input) - 1, exact near 0.",
    "log": "Natural logarithm; NaN below 0, -inf at 0.",
    "log1p": "log(1 + input), exact near 0.",
    "log2": "Logarithm to base 2.",
    "sin": "Sine of radians.",
    "cos": "Cosine of radians.",
    "tan": "Tangent of radians.",
    "sinh": "Hyperbolic sine.",
    "cosh": "Hyperbolic cosine.",
    "tanh": "Hyperbolic tangent.",
    "arcsin": "Inverse of sin, in [-pi/2, pi/2]; NaN outside [-1, 1].",
    "arccos": "Inverse of cos, in [0, pi]; NaN outside [-1, 1].",
    "arctan": "Inverse of tan, in [-pi/2, pi/2].",
    "arcsinh": "Inverse of sinh.",
    "arccosh": "Inverse of cosh; NaN below 1.",
    "arctanh": "Inverse of tanh; NaN outside [-1, 1].",
    "erf": "The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0.",
    "isnan": "Whether each entry is NaN.",
    "isinf": "Whether each entry is an infinity.",
    "isfinite": "Whether each entry is neither NaN nor an infinity.",
}

# Gradients at ties and jumps are defined on both libraries: docs/ops.md lists them.
_BINARY = {
    "add": "`left` + right; of booleans: or.",
    "subtract": "`left` - right.",
    "multiply": "`left` * right; of booleans: and.",
    "floor_divide": "`left` / right rounded down; an integer divided by 0 is 0.",
    "remainder": "The remainder of `floor_divide`, with the sign of right.",
    "power": "`left` to the power of right; an integer for two integers.",
    "maximum": "The larger of two, or NaN; at a tie each gets half of the gradient.",
    "minimum": "The smaller of two, or NaN; at a tie each gets half of the gradient.",
    "equal": "`left` == right, as booleans; NaN equals nothing.",
    "not_equal": "`left` != right, as booleans.",
    "less": "`left` < right, as booleans.",
    "less_equal": "`left` <= right, as booleans.",
    "greater": "`left` > right, as booleans.",
    "greater_equal": "`left` >= right, as booleans.",
    "logical_and": "Whether both are not 0.",
    "logical_or": "Whether at least one is not 0.",
    "logical_xor": "Whether exactly one is not 0.",
    "bitwise_and": "The bits that are set in both integers.",
    "bitwise_or": "The bits that are set in at least one of two integers.",
    "bitwise_xor": "The bits that are set in exactly one of two integers.",
    "left_shift": "`left` * 2^right, for 0 <= right < the number of bits.",
    "right_shift": "`left` / 2^right rounded down, for 0 <= right < number of bits.",
}

_BINARY_FLOAT = {
    "divide": "`left` / right; of integers a float.",
    "arctan2": "The angle of the point (x=right, y=left), in (-pi, pi].",
    "logaddexp": "log(exp(left) + exp(right)) without overflow.",
}

for _name, _doc in _UNARY.items():
    declare_unary(_name, _doc, "same")
for _name, _doc in _UNARY_FLOAT.items():
    declare_unary(_name, _doc, "float")
for _name, _doc in _BINARY.items():
    _declare_binary(_name, _doc, "same")
for _name, _doc in _BINARY_FLOAT.items():
    _declare_binary(_name, _doc, "float")


@op(promote="same", name="round")
def round_(xp: Any, input: Array, *, decimals: int = 0) -> Array:
    """Round to decimals, halves to the even neighbour."""
    # Halves go to the even neighbour, as in IEEE 754: rounding them up would bias sums.
    return xp.round(input, decimals=decimals)


@op()
def clip(
    xp: Any, input: Array, *, min: float | None = None, max: float | None = None
) -> Array:
    """Clip to [min, max]; the gradient is 0 at the bounds and beyond."""
    # The bounds take part in promotion: an int array clipped at 0.5 becomes a float.
    (x, low, high) = xp.promote((input, min, max))
    if any(hasattr(bound, "shape") for bound in (min, max)):  # in eager calls
        if low is not None:
            x = xp.maximum(x, low)
        return x if high is None else xp.minimum(x, high)
    if min is not None and max is not None and min > max:
        raise ValueError(f"clip: min={min!r} is above max={max!r}.")
    return xp.clip(x, min, max)


@op(promote="same")
def nan_to_num(
    xp: Any,
    input: Array,
    *,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Array:
    """Replace NaN and infinities, by 0 and the largest numbers unless given."""
    return xp.nan_to_num(input, nan=nan, posinf=posinf, neginf=neginf)


@op()
def where(
    xp: Any,
    condition: Bool[Any, "*#shape"],
    left: Shaped[Any, "*#shape"],
    right: Shaped[Any, "*#shape"],
) -> Array:
    """`left` where the condition is not 0, right elsewhere."""
    # The dtype of the condition takes no part in that of the result.
    left, right = xp.promote((left, right))
    (condition,) = xp.promote((condition,))
    return xp.where(xp.cast(condition, "bool"), left, right)


@op()
def masked_fill(
    xp: Any, input: Array, mask: Bool[Any, "*#shape"], *, value: float
) -> Array:
    """`value` where the mask is not 0, the input elsewhere."""
    return where.body(xp, mask, value, input)
