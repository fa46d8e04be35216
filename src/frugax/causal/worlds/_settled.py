"""Worlds moved to what experiments gave, where rows counted for less than they are.

That functions are never quite right is no reason to doubt a mean that was measured:
what a fit left out still says what that one experiment does, and those nearby.

References:
    Houtekamer & Mitchell 2001, Monthly Weather Review 129:123-137 (an ensemble is
    updated by its own covariances, each times a function that vanishes far away).
"""

import numpy as np
from jaxtyping import Float

from ._basis import Basis
from ._effects import Outcomes, Points, kernel

_LENGTH = 0.6  # half-widths over which an experiment tells of its neighbours


def settled(
    worlds: Float[np.ndarray, "worlds points"],
    points: Points,
    at_experiments: Float[np.ndarray, "worlds experiments"],
    outcomes: Outcomes,
    basis: Basis,
    rng: np.random.Generator,
) -> Float[np.ndarray, "worlds points"]:
    """Each world's answers, as they are once the outcomes count in full.

    Args:
        worlds: what each world says of the points.
        points: interventions.
        at_experiments: what it says of the experiments.
        outcomes: what they gave.
        basis: ranges of the variables.
        rng: where the outcomes' errors come from.
    """
    new = np.flatnonzero(outcomes.left > 0)
    if not len(new):
        return worlds
    near = kernel(outcomes.points, outcomes.points, basis, _LENGTH)[np.ix_(new, new)]
    far = kernel(points, outcomes.points, basis, _LENGTH)[:, new]
    variance = outcomes.error[new] ** 2 / outcomes.left[new]
    said = at_experiments[:, new]
    off, there = said - said.mean(0), worlds - worlds.mean(0)
    among = off.T @ off / len(off) * near + np.diag(variance)
    noise = rng.standard_normal(said.shape) * np.sqrt(variance)
    gap = outcomes.mean[new] + noise - said
    return worlds + gap @ np.linalg.solve(among, (there.T @ off / len(off) * far).T)
