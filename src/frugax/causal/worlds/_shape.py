"""The columns of a regression that may bend, and how much each may contribute."""

import dataclasses

import numpy as np
from jaxtyping import Float

from ._basis import beyond, sines, spectrum

SINES = 20  # resolve lengths down to an eighth of half the range
# A function may be at another level below its range, and above.
BENDS = SINES + 2
EDGE = 1.15  # where waves end, in half-widths
NOTHING = 1e-10  # prior variance below which a column is left out
_ASIDE = (10.0, 0.4)  # gain and length of companions' columns


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What was found to explain a variable best; the slow part of a fit.

    Attributes:
        line: gain of the straight lines.
        bends: for each parent the length and gain of its sines; gain 0 for none.
        waves: which length of waves, and their gain; gain 0 for none.
    """

    line: float
    bends: tuple[tuple[float, float], ...]
    waves: tuple[int, float]


def bends(u: Float[np.ndarray, "*points"]) -> Float[np.ndarray, "*points k"]:
    """The columns in which one parent bends.

    Args:
        u: its values, as `Basis.scaled` gives them.
    """
    return np.concatenate([sines(u, SINES), beyond(u)], axis=-1)


def columns_of(
    u: Float[np.ndarray, "n p"], frequencies: Float[np.ndarray, "waves p"]
) -> Float[np.ndarray, "n k"]:
    """The columns of all parents: a constant, lines, bends and waves.

    Args:
        u: the parents' values, as `Basis.scaled` gives them.
        frequencies: of the waves.
    """
    n, p = u.shape
    bent = bends(u).reshape(n, p * BENDS)
    angles = np.clip(u, -EDGE, EDGE) @ frequencies.T
    return np.concatenate(
        [np.ones((n, 1)), u, bent, np.sin(angles), np.cos(angles)], axis=1
    )


def prior_of(shape: Shape, p: int, count: int) -> Float[np.ndarray, " k"]:
    """The prior variance of each column's weight, in units of the noise's.

    Args:
        shape: how much each part may contribute.
        p: how many parents.
        count: how many waves.
    """
    parts = [np.full(1, 100.0), np.full(p, shape.line)]
    # Outside of its range a function leaves the level of the edge by as much as it
    # bends inside: what is straight there goes on straight.
    parts += [
        gain * np.append(spectrum(SINES, length), (1.0, 1.0))
        for length, gain in shape.bends
    ]
    parts.append(np.full(2 * count, shape.waves[1] / max(count, 1)))
    return np.concatenate(parts)


def companions(
    aside: Float[np.ndarray, "n c"] | None,
) -> tuple[list[np.ndarray], Float[np.ndarray, " k"]]:
    """Companions' columns, if there are any, and their prior variances.

    Args:
        aside: values of companions in half-widths, NaN where they were set.
    """
    if aside is None or not aside.shape[1]:
        return [], np.empty(0)
    gain, length = _ASIDE
    prior = gain * np.concatenate([np.ones(1), spectrum(SINES, length)])
    kept = prior > NOTHING
    found: list[np.ndarray] = []
    for u in aside.T:
        free = np.isfinite(u)
        u = np.nan_to_num(u)
        columns = np.concatenate([u[:, None], sines(u, SINES)], axis=1)[:, kept]
        if free.any():
            columns = columns - columns[free].mean(0)
        found.append(np.where(free[:, None], columns, 0.0))
    return found, np.tile(prior[kept], len(found))
