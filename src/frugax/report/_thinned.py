"""Long curves in few points."""

import itertools

import numpy as np
from jaxtyping import Float


def thinned(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], most: int
) -> tuple[np.ndarray, np.ndarray]:
    """About `most` points: of each bucket the lowest and highest, so that peaks stay.

    A value that is not finite stays too, or its gap would close.
    """
    if len(x) <= most:
        return x, y
    edges = np.linspace(0, len(x), most // 3 + 1).astype(int)
    keep = {0, len(x) - 1}
    for start, stop in itertools.pairwise(edges.tolist()):
        bucket = y[start:stop]
        sound = np.isfinite(bucket)
        if not sound.all():
            keep.add(start + int(sound.argmin()))
        if sound.any():
            keep.add(start + int(np.where(sound, bucket, np.inf).argmin()))
            keep.add(start + int(np.where(sound, bucket, -np.inf).argmax()))
    kept = np.array(sorted(keep))
    return x[kept], y[kept]
