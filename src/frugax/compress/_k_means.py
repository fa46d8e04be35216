"""Clusters of weighted points: k-means, the best of four starts."""

import numpy as np

_STARTS = 4
_ROUNDS = 30


def k_means(
    points: np.ndarray, weight: np.ndarray, k: int, rng: np.random.Generator
) -> np.ndarray:
    """Which of `k` clusters each point belongs to.

    Args:
        points: `(points, axes)`.
        weight: of each point, >= 0; not all of them 0.
        k: how many clusters; some may stay empty where points are equal.
        rng: of the starts.
    """
    best, least = np.zeros(len(points), int), np.inf
    for _ in range(_STARTS):
        found, spread = _from_one_start(points, weight, k, rng)
        if spread < least:
            best, least = found, spread
    return best


def _from_one_start(
    points: np.ndarray, weight: np.ndarray, k: int, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Which centre each point belongs to, and their weighted squared distances."""
    centres = points[rng.choice(len(points), 1, p=weight / weight.sum())]
    while len(centres) < k:  # k-means++: far points are likelier
        far = weight * _squared_distances(points, centres).min(axis=1)
        p = far / far.sum() if far.sum() > 0 else weight / weight.sum()
        centres = np.vstack([centres, points[rng.choice(len(points), 1, p=p)]])
    nearest = np.zeros(len(points), int)
    for _ in range(_ROUNDS):
        distances = _squared_distances(points, centres)
        nearest = distances.argmin(axis=1)
        one_hot = np.eye(k)[nearest] * weight[:, None]
        total = one_hot.sum(axis=0)
        moved = one_hot.T @ points / np.maximum(total, np.finfo(float).tiny)[:, None]
        moved = np.where(total[:, None] > 0, moved, centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    distances = _squared_distances(points, centres)
    return distances.argmin(axis=1), float((weight * distances.min(axis=1)).sum())


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    squares = (points**2).sum(1)[:, None] + (centres**2).sum(1)
    return np.maximum(squares - 2 * points @ centres.T, 0)
