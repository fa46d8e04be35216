"""Sufficient statistics of a table, of a fixed size for any number of rows.

Each variable enters as a few basis functions of itself. The scores and pair features
need only their products, summed over rows. So a data set of any length becomes arrays
of one shape, and no program is compiled for a number of rows.
"""

import numpy as np
from jaxtyping import Float

Rows = Float[np.ndarray, "*batch n d"]

# x, and a bounded odd and a bounded even function: outliers, and values set far outside
# the observed range, must not dominate the sums.
BASIS = 3
# Standardized values are clipped to this many standard deviations.
_CLIP = 5.0
# A standard deviation below this share of the largest value is float32 rounding.
_ROUNDING = 1e-9


def basis_functions(z: Rows, present: Rows) -> Float[np.ndarray, "*batch n f"]:
    """Evaluate a constant and three functions of each standardized variable."""
    one = np.ones_like(z[..., :1])
    # 0.43 = exp(-1.3^2 / 2) is the mean of the cosine for a standard normal variable:
    # the even function then has mean 0 there, as the odd one has.
    odd = np.sin(1.5 * z) * present
    even = (np.cos(1.3 * z) - 0.43) * present
    return np.concatenate([one, z, odd, even], axis=-1)


def moments(
    values: Rows, intervened: Rows, present: Rows
) -> Float[np.ndarray, "*batch d_plus_2 f f"]:
    """Sum products of basis functions over rows."""
    # In float64: variances are differences of these sums, and in float32 those of
    # binary or nearly constant columns came out negative.
    values, present = values.astype(np.float64), present.astype(np.float64)
    natural = present * (1 - intervened)
    count = natural.sum(-2)
    # A variable that was set in every row is scaled by the values that were set.
    use = np.where((count > 1)[..., None, :], natural, present)
    count = np.maximum(use.sum(-2), 1)[..., None, :]
    mean = (values * use).sum(-2)[..., None, :] / count
    centred = (values - mean) * present
    scale = np.sqrt((centred**2 * use).sum(-2)[..., None, :] / count)
    # A relative bound: an absolute one would depend on the unit.
    least = _ROUNDING * np.abs(values * present).max(-2)[..., None, :]
    z = np.clip(centred / np.where(scale > least, scale, 1), -_CLIP, _CLIP)
    columns = basis_functions(z, present)
    row = present.max(-1)
    untouched = row * (1 - (intervened * present).max(-1))
    weights = np.concatenate([natural, untouched[..., None], row[..., None]], axis=-1)
    weights = np.swapaxes(weights, -1, -2)  # [..., d + 2, n]
    weighted = weights[..., None] * columns[..., None, :, :]  # [..., d + 2, n, f]
    return np.swapaxes(weighted, -1, -2) @ columns[..., None, :, :]
