"""Where a decreasing function meets a target, in few evaluations.

Regula falsi with the Illinois change (Dowell & Jarratt 1971, BIT 11, 168-174): bytes
and log-errors are nearly straight lines in the logarithm of the step, so it takes five
or six evaluations where bisection takes a dozen.
"""

from collections.abc import Callable


def meet(
    function: Callable[[float], float],
    target: float,
    low: float,
    high: float,
    *,
    tolerance: float,
    most: int = 24,
) -> float:
    """Find `x` with `function(x)` at most `target` and, if it can be, close to it.

    Args:
        function: decreasing, or nearly so.
        target: the value to meet from below.
        low: where the function is above the target.
        high: where it is at or below the target.
        tolerance: how far below the target is close enough, in the function's unit.
        most: most evaluations.

    Returns:
        The best point seen, or `high` if none was at or below the target.
    """
    best, best_value = high, -float("inf")
    at_low, at_high = function(low) - target, function(high) - target
    if at_low <= 0:
        return low
    previous = 0
    for _ in range(most):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        inside = min(low, high) < middle < max(low, high)
        middle = middle if inside else (low + high) / 2
        gap = function(middle) - target
        if gap > 0:
            low, at_low = middle, gap
            at_high = at_high / 2 if previous == 1 else at_high
            previous = 1
        else:
            if gap > best_value:
                best, best_value = middle, gap
            high, at_high = middle, gap
            at_low = at_low / 2 if previous == -1 else at_low
            previous = -1
        if -tolerance <= gap <= 0 or abs(high - low) < 1e-5:
            break
    return best
