"""What the surrogate knows of a data set: moments, of fixed size for any rows.

Each variable enters as a few functions of itself (`BASIS`). Their products, summed over
rows, are all that the scores and the pair features need. So a data set of any length
becomes arrays of one shape, and nothing is compiled for a number of rows.
"""

from typing import Any

import numpy as np

# x, an odd and an even function that are bounded: outliers and values set far outside
# the observed range must not outweigh everything else.
BASIS = 3
_REACH = 5.0
# A spread below this share of the largest value is float32's rounding.
_ROUNDING = 1e-9


def basis(z: Any, present: Any) -> Any:
    """Functions of each standardised variable, and a constant.

    Args:
        z: standardised values [..., n, d].
        present: 1 where there is a value, else 0 [..., n, d].

    Returns:
        [..., n, 1 + 3 d]: the constant, then x of all variables, then the others.
    """
    one = np.ones_like(z[..., :1])
    odd = np.sin(1.5 * z) * present
    even = (np.cos(1.3 * z) - 0.43) * present
    return np.concatenate([one, z, odd, even], axis=-1)


def moments(values: Any, intervened: Any, present: Any) -> Any:
    """Sums over rows of products of basis functions.

    Args:
        values: [..., n, d] float32; what is not present may be anything finite.
        intervened: 1 where the value was set by an experiment, else 0 [..., n, d].
        present: 1 where row, variable and value are there, else 0 [..., n, d].

    Returns:
        [..., d + 2, f, f] with f = 1 + 3 d: for each variable over the rows in which
        it is present and was not set; then over rows without any intervention; then
        over all rows.
    """
    natural = present * (1 - intervened)
    count = natural.sum(-2)
    # A variable that was set in every row has no natural spread: take what there is.
    use = np.where((count > 1)[..., None, :], natural, present)
    count = np.maximum(use.sum(-2), 1)[..., None, :]
    mean = (values * use).sum(-2)[..., None, :] / count
    centred = (values - mean) * present
    scale = np.sqrt((centred**2 * use).sum(-2)[..., None, :] / count)
    # No absolute bound: it would depend on the unit.
    least = _ROUNDING * np.abs(values * present).max(-2)[..., None, :]
    z = np.clip(centred / np.where(scale > least, scale, 1), -_REACH, _REACH)
    columns = basis(z, present)
    row = present.max(-1)
    untouched = row * (1 - (intervened * present).max(-1))
    weights = np.concatenate([natural, untouched[..., None], row[..., None]], axis=-1)
    weights = np.swapaxes(weights, -1, -2)  # [..., d + 2, n]
    weighted = weights[..., None] * columns[..., None, :, :]  # [..., d + 2, n, f]
    return np.swapaxes(weighted, -1, -2) @ columns[..., None, :, :]
