"""The smallest file in the unit that its size was asked for in."""

import math
from collections.abc import Callable

from frugax.budget import SizeBudget

_DIGITS = 4


def best_ratio(
    budget: SizeBudget, needed: int, *, original_bytes: int, weights: int
) -> tuple[str, dict[str, float]]:
    """What a ratio, or bits per weight, would have to be.

    Args:
        budget: what was asked for.
        needed: bytes of the smallest file.
        original_bytes: of the weights as they are.
        weights: how many numbers they hold.

    Returns:
        The beginning of a message, and the best value by the name of its limit, rounded
        so that it can be reached; nothing where the budget is in bytes.

    >>> asked = SizeBudget("9x")
    >>> best_ratio(asked, 300, original_bytes=1000, weights=250)
    ('9x smaller is out of reach, the best is 3.333x: ', {'ratio': 3.333})
    """
    if budget.ratio is not None:
        best = _rounded(original_bytes / needed, math.floor)
        said, name, unit = f"{budget.ratio:g}x smaller", "ratio", "x"
    elif budget.bits_per_weight is not None:
        best = _rounded(8 * needed / weights, math.ceil) if weights else 0.0
        said = f"{budget.bits_per_weight:g} bits per weight"
        name, unit = "bits_per_weight", ""
    else:
        return "", {}
    if not best:  # there are no numbers to count from
        return f"{said} leaves no bytes, for the weights have none: ", {}
    return f"{said} is out of reach, the best is {best:.10g}{unit}: ", {name: best}


def _rounded(number: float, way: Callable[[float], int]) -> float:
    """Four digits of a number >= 0, away from what cannot be reached."""
    if not number:
        return 0.0
    places = _DIGITS - 1 - math.floor(math.log10(number))
    return way(number * 10.0**places) / 10.0**places
