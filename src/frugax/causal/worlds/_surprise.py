"""How far forecasts of untried experiments may be off, by how far they were before.

Worlds that agree may all be wrong: none of them has every cause that nobody measured.
Then their spread says nothing, but what experiments gave beside what was forecast does
(Kennedy & O'Hagan 2001, J. Royal Statistical Society B 63:425-464: model discrepancy).
"""

import numpy as np
from jaxtyping import Float

from ._basis import Basis
from ._effects import Outcomes, Points, kernel

_SIZES = (0.0, 0.05, 0.15, 0.4, 1.0)  # in the target's spread
# Where a set of variables was never set together no forecast has been tested: there may
# be a way from them to the target that no world has.
_NEVER = 0.25
_LENGTH = 0.25  # half-widths over which an experiment tells of its neighbours


def surprise(
    points: Points,
    outcomes: Outcomes,
    basis: Basis,
    scale: float,
) -> Float[np.ndarray, " points"]:
    """How far forecasts may be off where nobody has tried, by how far they were.

    One far from all before it tests the worlds; one that is repeated does not.

    Args:
        points: interventions.
        outcomes: what the experiments gave.
        basis: ranges of the variables.
        scale: standard deviation of the target, in its unit.

    Returns:
        Standard deviation beside that of the worlds: 0 where forecasts came true, and a
        quarter of the target's spread for variables that were never set together.
    """
    if not len(outcomes.mean):
        return np.zeros(len(points))
    told = np.isfinite(outcomes.expected)
    near = kernel(outcomes.points, outcomes.points, basis, _LENGTH)
    near = np.where(outcomes.order[:, None] > outcomes.order, near, 0.0)
    new = 1.0 - near.max(1)[told] ** 2
    gap = (outcomes.mean - outcomes.expected)[told] ** 2
    known = (outcomes.spread**2 + outcomes.error**2)[told]
    best, found = -np.inf, 0.0
    for size in _SIZES:
        variance = known + (size * scale) ** 2 * new
        # Student's t with three degrees of freedom: one wild forecast is no rule.
        score = -float(
            (0.5 * np.log(variance) + 2 * np.log1p(gap / variance / 3)).sum()
        )
        score -= np.log(2 * len(_SIZES)) if size else np.log(2)
        if score > best:
            best, found = score, size * scale
    close = kernel(points, outcomes.points, basis, _LENGTH).max(1)
    left = found * np.sqrt(1.0 - close**2)
    tried = np.array([where in outcomes.points.where for where in points.where], bool)
    return np.where(tried[points.group], left, max(found, _NEVER * scale))
