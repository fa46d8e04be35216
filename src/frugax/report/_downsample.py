"""Downsample a long series for a chart, without losing its peaks or its gaps."""

import numpy as np
from jaxtyping import Int, Shaped


def downsample(
    x: Shaped[np.ndarray, " n"], y: Shaped[np.ndarray, " n"], max_points: int
) -> tuple[Shaped[np.ndarray, " k"], Shaped[np.ndarray, " k"]]:
    """Keep about `max_points` points, among them all peaks and gaps.

    The points are cut into buckets of equal count. Each bucket keeps its first lowest
    and its first highest finite value, and its first value that is not finite, so that
    a NaN stays visible as a gap. The first and the last point are always kept.

    Args:
        x: the positions, increasing.
        y: real numbers.
        max_points: a series that is no longer comes back as it is; >= 4.

    Returns:
        A subsequence of the points: at most `max_points` if all are finite, half as
        many again if many are not.

    Raises:
        ValueError: `max_points` is below 4.
    """
    if max_points < 4:
        raise ValueError(f"max_points must be >= 4, got {max_points}.")
    n = len(y)
    if n <= max_points:
        return x, y
    # Two points of each bucket, and the two ends.
    size = -(-n // ((max_points - 2) // 2))
    full = n // size
    kept = [np.array([0, n - 1])]
    # The full buckets are the rows of one matrix: a million points take milliseconds.
    for start, buckets in (
        (0, y[: full * size].reshape(full, size)),
        (full * size, y[full * size :].reshape(1, -1)),
    ):
        if buckets.size:
            starts = start + np.arange(len(buckets)) * size
            kept += [starts + index for index in _find_extremes(buckets)]
    is_finite = np.isfinite(y)
    if not is_finite.all():
        gaps = np.flatnonzero(~is_finite)
        _, first = np.unique(gaps // size, return_index=True)
        kept.append(gaps[first])
    # Sorted, and each point once: an extreme of a bucket may also be an end.
    indices = np.unique(np.concatenate(kept))
    return x[indices], y[indices]


def _find_extremes(
    rows: Shaped[np.ndarray, "rows size"],
) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
    """Find the lowest and the highest finite value of each row."""
    is_finite = np.isfinite(rows)
    if is_finite.all():
        return rows.argmin(1), rows.argmax(1)
    # `argmin` would return the place of a NaN, as NumPy treats it as the smallest and
    # the largest value alike.
    low = np.where(is_finite, rows, np.inf).argmin(1)
    high = np.where(is_finite, rows, -np.inf).argmax(1)
    return low, high
