"""`Step`: the unit of quantised weights, and the product that decodes them.

A uniform grid followed by an entropy coder is within 1.53 dB of the best any code can
do for a Gaussian at high rate, whatever its scale (Gish & Pierce 1968, IEEE Trans.
Information Theory 14(5)), and it needs no table of centroids.

Decoding is `level * step`: both exact in float32 (float64 for float64 weights), one
rounded product, one conversion to the weights' dtype, which clips. IEEE 754 fixes every
bit of it, so NumPy, JAX and torch decode alike. A step is `mantissa * 2**exponent` with
an 11-bit mantissa, so that it is short in the file and the same in every float type.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

_MANTISSA_BITS = 11
# Levels beyond these would not be exact in the type that multiplies them.
MAX_LEVEL = {4: 1 << 24, 8: 1 << 52}
# Of any codec, by the bytes of the type that multiplies: float32 rounds the largest of
# the trellis.
_MAX_MAGNITUDE = {4: 1 << 31, 8: 1 << 53}
# Every level times the finest step stays a normal float32, so no machine flushes it to
# 0. The coarsest step is the largest float32 but one in 2048: no number needs another.
_EXPONENTS = range(-120, 129 - _MANTISSA_BITS)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Step:
    """The distance between two neighbouring values: `mantissa * 2**exponent`.

    Attributes:
        mantissa: in [1024, 2047].
        exponent: in [-120, 117].
    """

    mantissa: int
    exponent: int

    def __post_init__(self) -> None:
        low = 1 << (_MANTISSA_BITS - 1)
        if not (low <= self.mantissa < 2 * low and self.exponent in _EXPONENTS):
            raise ValueError(f"no valid step: {self.mantissa} * 2**{self.exponent}.")

    @property
    def size(self) -> float:
        """The step as a number, exact in every float type of 32 bits or more."""
        return math.ldexp(self.mantissa, self.exponent)


MIN_STEP = Step(1 << (_MANTISSA_BITS - 1), _EXPONENTS[0])
MAX_STEP = Step((1 << _MANTISSA_BITS) - 1, _EXPONENTS[-1])


def step_below(size: float) -> Step | None:
    """Return the largest step that is at most `size`; None if that is out of range."""
    if not 0 < size < math.inf:
        return None
    fraction, exponent = math.frexp(size)  # fraction in [0.5, 1)
    mantissa = math.floor(math.ldexp(fraction, _MANTISSA_BITS))
    exponent -= _MANTISSA_BITS
    if exponent not in _EXPONENTS:
        return None
    return Step(mantissa, exponent)


def to_levels(values: np.ndarray, step: Step) -> np.ndarray | None:
    """Round finite values to int64 levels; None if some level is out of range."""
    working = compute_type(values.dtype)
    with np.errstate(over="ignore"):  # an infinite quotient is caught below
        scaled = values.astype(working) / working(step.size)
    if scaled.size and np.abs(scaled).max() > MAX_LEVEL[np.dtype(working).itemsize]:
        return None
    return np.rint(scaled).astype(np.int64)


def to_values(levels: np.ndarray, step: Step, dtype: "np.dtype[Any]") -> np.ndarray:
    """Decode levels: one rounded product, clipped, then the weights' dtype."""
    return scale_levels(levels.astype(compute_type(dtype)), step, dtype)


def scale_levels(levels: np.ndarray, step: Step, dtype: "np.dtype[Any]") -> np.ndarray:
    """Decode levels that have the computing type already, in place if it is `dtype`."""
    with np.errstate(over="ignore"):
        levels *= levels.dtype.type(step.size)
    return clip_products(levels, step.size, dtype)


def clip_products(
    products: np.ndarray, largest_step: float, dtype: "np.dtype[Any]"
) -> np.ndarray:
    """Convert products to a dtype; those beyond its range become its largest numbers.

    The integer nearest to a weight near the end of the range may stand for more than
    the dtype holds. The products are clipped in place.
    """
    largest = largest_finite(dtype)
    if largest_step * _MAX_MAGNITUDE[products.dtype.itemsize] > largest:
        np.clip(products, -largest, largest, out=products)
    return products.astype(dtype, copy=False)


@functools.cache
def largest_finite(dtype: "np.dtype[Any]") -> float:
    """Return the largest number of a float dtype, one of `ml_dtypes` or NumPy's."""
    if dtype.kind == "V":
        import ml_dtypes

        return float(ml_dtypes.finfo(dtype).max)
    return float(np.finfo(dtype).max)


def compute_type(dtype: "np.dtype[Any]") -> "type[np.float32] | type[np.float64]":
    """Return the float type that multiplies levels for weights of a dtype."""
    return np.float64 if dtype.itemsize == 8 else np.float32
