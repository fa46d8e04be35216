"""The experiments that are weighed: a grid, finer where it counts."""

import itertools

import numpy as np
from jaxtyping import Float

from frugax.causal.posterior import Points

from ._settings import Settings

_MOST = 700  # points in all; each costs some twenty microseconds a world
_NEAR = 12  # points around each place that is looked at more closely


def grid(
    settings: Settings, names: tuple[str, ...], rng: np.random.Generator
) -> Points:
    """Points over all ranges, the ends of each included.

    Args:
        settings: which variables, ranges and sets.
        names: all variables in the order of columns.
        rng: where the points of larger sets come from.
    """
    sets = [s for s in settings.allowed_sets() if set(s) <= set(names)]
    larger = [s for s in sets if len(s) > 1]
    singles = len(sets) - len(larger)
    one = int(np.clip(_MOST // 2 // max(singles, 1), 9, 65))
    each = int(np.clip(_MOST // max(len(larger), 1), 16, 400))
    values: list[np.ndarray] = []
    for s in sets:
        low, high = np.array([settings.variables[n] for n in s]).T
        if len(s) == 1:
            unit = np.linspace(0.0, 1.0, one)[:, None]
        else:
            unit = _unit(len(s), each, rng)
        values.append(low + unit * (high - low))
    where = tuple(tuple(names.index(n) for n in s) for s in sets)
    return Points(where, tuple(values))


def nearby(
    points: Points,
    centres: list[int],
    settings: Settings,
    names: tuple[str, ...],
    rng: np.random.Generator,
) -> Points:
    """More points around some of them, within the ranges.

    Args:
        points: those there are.
        centres: around which.
        settings: the ranges.
        names: all variables in the order of columns.
        rng: where they come from.
    """
    extra: dict[tuple[int, ...], list[np.ndarray]] = {}
    for i in dict.fromkeys(centres):
        where, centre = points.at(i)
        low, high = np.array([settings.variables[names[v]] for v in where]).T
        size = next(
            len(v)
            for w, v in zip(points.targets, points.values, strict=True)
            if w == where
        )
        # From a grid's step to a twentieth of it.
        step = (high - low) / max(size ** (1 / len(where)) - 1, 1.0)
        widths = np.geomspace(1.0, 0.05, _NEAR)[:, None]
        moved = centre + step * widths * rng.uniform(-1, 1, (_NEAR, len(where)))
        extra.setdefault(where, []).append(np.clip(moved, low, high))
    return Points(
        tuple(extra), tuple(np.concatenate(values) for values in extra.values())
    )


def joined(one: Points, other: Points) -> Points:
    """Both, with one group for each set of variables."""
    groups: dict[tuple[int, ...], list[np.ndarray]] = {}
    for points in (one, other):
        for where, values in zip(points.targets, points.values, strict=True):
            groups.setdefault(where, []).append(values)
    return Points(
        tuple(groups), tuple(np.concatenate(values) for values in groups.values())
    )


def _unit(
    places: int, count: int, rng: np.random.Generator
) -> Float[np.ndarray, "points {places}"]:
    """Points in the unit cube: a grid for two places, corners and a spread for more."""
    if places == 2:
        side = np.linspace(0.0, 1.0, max(int(count**0.5), 3))
        return np.array(list(itertools.product(side, side)))
    corners = (
        np.array(list(itertools.product((0.0, 1.0), repeat=places)))
        if 2**places <= count // 2
        else rng.integers(0, 2, (count // 2, places)).astype(float)
    )
    left = count - len(corners)
    # A Latin square of each side: no value of any variable is missed.
    spread = np.stack([rng.permutation(left) for _ in range(places)], axis=1)
    return np.concatenate([corners, (spread + rng.random((left, places))) / left])
