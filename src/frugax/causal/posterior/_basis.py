"""Basis functions of mechanisms: Hilbert-space approximation of Gaussian processes.

A smooth function on an interval is a sum of sines whose weights have a known prior
variance: a Gaussian process in the eigenbasis of the Laplace operator. Fitting one is
a regression on some twenty columns; to draw the weights is to draw a function.

References:
    Solin & Särkkä 2020, Statistics and Computing 30:419-446.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Bool, Float

# The sines vanish at +-BOUNDARY, in half-widths of a variable's range. It lies far
# enough outside that functions are not pulled to 0 at the ends of the range, and near
# enough that few sines are wasted where no row resolves them.
BOUNDARY = 1.5
_LAST_RESOLVED = 1.1  # the sines stay constant beyond: no row says anything there
_LEVEL_LENGTH = 0.5  # half-widths over which a function changes to another level
_CLIP = 3.0
# Values that differ by less than this share of their size are equal but for rounding.
ROUNDING = 1e-12

NUM_SINES = 20  # resolves length scales down to an eighth of half the range
# A function may settle at another level below its range, and at another above.
NUM_BENDS = NUM_SINES + 2
WAVE_EDGE = 1.15  # half-widths beyond which the waves stay constant
NEGLIGIBLE = 1e-10  # prior variance below which a column is dropped
_COMPANION_GAIN, _COMPANION_LENGTH = 10.0, 0.4


@dataclasses.dataclass(frozen=True, slots=True)
class Domain:
    """The range of each variable, on which its functions are defined.

    Attributes:
        centre: centre of each variable's range, in the variable's unit.
        half_width: half the width of the range; > 0.
    """

    centre: Float[np.ndarray, " d"]
    half_width: Float[np.ndarray, " d"]

    @classmethod
    def from_data(
        cls,
        values: Float[np.ndarray, "n d"],
        observational: Bool[np.ndarray, " n"],
        low: Float[np.ndarray, " d"],
        high: Float[np.ndarray, " d"],
    ) -> "Domain":
        """Cover the ranges in which interventions and data lie."""
        ranges = np.array(
            [
                _find_range(values[:, j], values[observational, j], low[j], high[j])
                for j in range(len(low))
            ]
        ).reshape(-1, 2)
        half = (ranges[:, 1] - ranges[:, 0]) / 2
        # Relative to the values, so that the unit of a column does not matter.
        wide = half > ROUNDING * np.abs(ranges).max(1, initial=0.0)
        return cls(ranges.mean(1), np.where(wide, half, 1.0))

    def normalize(
        self, x: Float[np.ndarray, "*points"], variable: int
    ) -> Float[np.ndarray, "*points"]:
        """Convert values to half-widths from the centre of the variable's range.

        Values are clipped at three half-widths: one wild value must not decide a slope.
        """
        u = (x - self.centre[variable]) / self.half_width[variable]
        return np.clip(u, -_CLIP, _CLIP)


def _find_range(
    column: Float[np.ndarray, " n"],
    observed: Float[np.ndarray, " m"],
    low: float,
    high: float,
) -> tuple[float, float]:
    # Quantiles instead of extremes: one outlier would stretch the range that the fixed
    # number of sines has to resolve.
    usual = np.array([np.nan, np.nan])
    if np.isfinite(observed).any():
        usual = np.quantile(observed[np.isfinite(observed)], (0.01, 0.99))
    if np.isfinite(low):
        # fmin and fmax ignore NaN: the range of interventions counts in any case.
        return float(np.fmin(low, usual[0])), float(np.fmax(high, usual[1]))
    seen = column[np.isfinite(column)]
    if not len(seen):
        return -1.0, 1.0
    found = np.quantile(seen, (0.01, 0.99))
    if np.isfinite(usual).all():
        # An experiment upstream can push a variable far; 1.5 usual widths are covered.
        room = 1.5 * (usual[1] - usual[0])
        found = np.clip(found, usual[0] - room, usual[1] + room)
    return float(found[0]), float(found[1])


def evaluate_sines(
    u: Float[np.ndarray, "*points"], count: int
) -> Float[np.ndarray, "*points {count}"]:
    """Evaluate the first eigenfunctions of the Laplace operator."""
    angle = (
        np.pi
        / (2 * BOUNDARY)
        * (np.clip(u, -_LAST_RESOLVED, _LAST_RESOLVED) + BOUNDARY)
    )
    found = np.empty((count, *angle.shape))
    previous = np.zeros_like(angle)
    current = np.sin(angle) / np.sqrt(BOUNDARY)
    twice = 2 * np.cos(angle)
    # sin (k + 1) a = 2 cos a sin k a - sin (k - 1) a takes a fifth of the time of
    # np.sin. The recurrence loses digits near a = 0 and pi, which the clipping avoids.
    for k in range(count):
        found[k] = current
        previous, current = current, twice * current - previous
    return np.moveaxis(found, 0, -1)


@functools.cache
def spectral_density(count: int, length: float) -> Float[np.ndarray, " {count}"]:
    """Return the prior variance of each sine's weight, for functions of variance 1.

    It is the spectral density of the squared-exponential kernel at the square root of
    each eigenvalue (Solin & Särkkä 2020).
    """
    frequencies = np.pi * np.arange(1, count + 1) / (2 * BOUNDARY)
    found = length * np.sqrt(2 * np.pi) * np.exp(-0.5 * (length * frequencies) ** 2)
    found.flags.writeable = False  # all callers share it
    return found


def evaluate_bends(u: Float[np.ndarray, "*points"]) -> Float[np.ndarray, "*points k"]:
    """Evaluate the columns in which one parent may bend.

    They are the sines, and one column on either side that is 0 inside of the range and
    goes to 1 outside of it.
    """
    out = np.stack([-u - _LAST_RESOLVED, u - _LAST_RESOLVED], axis=-1)
    levels = -np.expm1(-0.5 * (np.maximum(out, 0.0) / _LEVEL_LENGTH) ** 2)
    return np.concatenate([evaluate_sines(u, NUM_SINES), levels], axis=-1)


def design_matrix(
    u: Float[np.ndarray, "n p"], frequencies: Float[np.ndarray, "waves p"]
) -> Float[np.ndarray, "n k"]:
    """Evaluate the columns of all parents: a constant, lines, bends and waves.

    The waves are random Fourier features of all parents together (Rahimi & Recht 2007,
    NeurIPS): parents that interact are in no sum of functions of one parent each.
    """
    n, p = u.shape
    bent = evaluate_bends(u).reshape(n, p * NUM_BENDS)
    angles = np.clip(u, -WAVE_EDGE, WAVE_EDGE) @ frequencies.T
    return np.concatenate(
        [np.ones((n, 1)), u, bent, np.sin(angles), np.cos(angles)], axis=1
    )


def companion_columns(
    u: Float[np.ndarray, "n c"] | None,
) -> tuple[list[np.ndarray], Float[np.ndarray, " k"]]:
    """Evaluate the columns of companions, and return them with their prior variances.

    A companion shares an unmeasured cause with the variable. Its columns are centred
    where it was not set, and 0 where it was: an intervention cuts it off that cause.
    """
    if u is None or not u.shape[1]:
        return [], np.empty(0)
    spectrum = spectral_density(NUM_SINES, _COMPANION_LENGTH)
    prior = _COMPANION_GAIN * np.concatenate([np.ones(1), spectrum])
    used = prior > NEGLIGIBLE
    found: list[np.ndarray] = []
    for one in u.T:
        free = np.isfinite(one)
        one = np.nan_to_num(one)
        columns = np.concatenate([one[:, None], evaluate_sines(one, NUM_SINES)], axis=1)
        columns = columns[:, used]
        if free.any():
            columns = columns - columns[free].mean(0)
        found.append(np.where(free[:, None], columns, 0.0))
    return found, np.tile(prior[used], len(found))
