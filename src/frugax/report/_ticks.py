"""Choose round tick values for the axis of a chart."""

import math


def ticks(low: float, high: float, *, about: int, whole: bool = False) -> list[float]:
    """Round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten.

    Args:
        low: the start of the axis.
        high: the end of the axis.
        about: the approximate number of labels.
        whole: whether to use whole numbers only.

    Returns:
        The labels in ascending order; at least one.

    Example:
        >>> ticks(0.0, 10.0, about=5)
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if high <= low:
        return [low]
    # Divided first: the difference of two finite numbers may overflow.
    raw = high / about - low / about
    power = 10.0 ** math.floor(math.log10(raw))
    # Multiples of 1, 2 and 5 need the fewest digits and are easy to count on.
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    if whole:
        step = max(round(step), 1)
    # The slack of 1e-9 keeps end points that rounding puts just outside.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)] or [low]
