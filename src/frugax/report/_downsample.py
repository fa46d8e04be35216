"""Reduce a long curve to few points without losing its peaks or its gaps."""

import itertools

import numpy as np
from jaxtyping import Float


def downsample(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], max_points: int
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Keep about `max_points` points: the lowest and the highest of each bucket.

    One value per bucket that is not finite is kept as well, or the gap in the curve
    would close.
    """
    if len(x) <= max_points:
        return x, y
    # Each bucket contributes up to three points: minimum, maximum and one gap.
    edges = np.linspace(0, len(x), max_points // 3 + 1).astype(int)
    kept = {0, len(x) - 1}
    for start, stop in itertools.pairwise(edges.tolist()):
        bucket = y[start:stop]
        is_finite = np.isfinite(bucket)
        if not is_finite.all():
            kept.add(start + int(is_finite.argmin()))
        if is_finite.any():
            kept.add(start + int(np.where(is_finite, bucket, np.inf).argmin()))
            kept.add(start + int(np.where(is_finite, bucket, -np.inf).argmax()))
    indices = np.array(sorted(kept))
    return x[indices], y[indices]
