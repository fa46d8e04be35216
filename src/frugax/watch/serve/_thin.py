"""Fewer points that look the same: of each stretch its lowest and highest value."""

import numpy as np
from jaxtyping import Int64, Shaped


def thin(
    steps: Int64[np.ndarray, " n"],
    values: Shaped[np.ndarray, " n"],
    *,
    most_points: int,
) -> tuple[Int64[np.ndarray, " k"], Shaped[np.ndarray, " k"]]:
    """At most about `most_points` of the points, peaks and gaps kept.

    The points are cut into stretches of equal count. Of each its first lowest and
    first highest finite value stay, and the first one that is not finite, so that a
    NaN is seen as a gap. First and last point always stay.

    Args:
        steps: rising.
        values: real numbers.
        most_points: a series no longer than this comes back as it is; >= 4.

    Returns:
        Steps and values, a part of those given, in their order; never more than
        `most_points` if all are finite, half as much again if many are not.

    Raises:
        ValueError: `most_points` is below 4.
    """
    if most_points < 4:
        raise ValueError(f"most_points must be >= 4, got {most_points}.")
    n = len(values)
    if n <= most_points:
        return steps, values
    stretches = (most_points - 2) // 2
    size = -(-n // stretches)
    whole = n // size  # full stretches; what is left is one shorter stretch
    kept = [np.array([0, n - 1])]
    starts = np.arange(whole) * size
    block = values[: whole * size].reshape(whole, size)
    kept += [starts + picked for picked in _extremes(block)]
    if whole * size < n:
        rest = values[whole * size :].reshape(1, -1)
        kept += [whole * size + picked for picked in _extremes(rest)]
    finite = np.isfinite(values)
    if not finite.all():
        broken = np.flatnonzero(~finite)
        _, first = np.unique(broken // size, return_index=True)
        kept.append(broken[first])
    at = np.unique(np.concatenate(kept))
    return steps[at], values[at]


def _extremes(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Place of the lowest and the highest finite value in each row."""
    if block.dtype.kind != "f":
        return block.argmin(1), block.argmax(1)
    finite = np.isfinite(block)
    if finite.all():
        return block.argmin(1), block.argmax(1)
    low = np.where(finite, block, np.inf).argmin(1)
    high = np.where(finite, block, -np.inf).argmax(1)
    return low, high
