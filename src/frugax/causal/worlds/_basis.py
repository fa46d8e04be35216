"""Functions of one variable, from which a mechanism is put together.

A smooth function on an interval is a sum of sines whose weights have a known prior
variance (a Gaussian process in its Laplace eigenbasis), so it costs a regression on
some twenty columns and a sample of it is a sample of their weights.

References:
    Solin & Särkkä 2020, Statistics and Computing 30:419-446.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

# The sines vanish at the ends of [-EDGE, EDGE], in half-widths of a variable's range:
# far enough outside to leave the range free, near enough not to waste sines.
EDGE = 1.5
# Beyond this the sines stay as they are: none says anything there.
_REACH = 1.1
_OUTSIDE = 0.5  # half-widths over which a function goes to another level
_FAR = 3.0
# Values that differ by less than this share of their size are equal.
ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True, slots=True)
class Basis:
    """The range of each variable, in which its functions are written.

    Attributes:
        centre: of each variable's range, in its unit.
        half: half the width of the range; > 0.
    """

    centre: Float[np.ndarray, " d"]
    half: Float[np.ndarray, " d"]

    @classmethod
    def of(
        cls,
        values: Float[np.ndarray, "n d"],
        observed: Bool[np.ndarray, " n"],
        low: Float[np.ndarray, " d"],
        high: Float[np.ndarray, " d"],
    ) -> "Basis":
        """The ranges in which interventions and data lie.

        Args:
            values: the data; NaN is missing.
            observed: in which rows nobody intervened.
            low: least value of an intervention; NaN where there are none.
            high: greatest value of an intervention; NaN where there are none.
        """
        ranges = np.array(
            [
                _range_of(values[:, j], values[observed, j], low[j], high[j])
                for j in range(len(low))
            ]
        ).reshape(-1, 2)
        half = (ranges[:, 1] - ranges[:, 0]) / 2
        # Of any unit: only what rounding alone could give counts as no width.
        wide = half > ROUNDING * np.abs(ranges).max(1, initial=0.0)
        return cls(ranges.mean(1), np.where(wide, half, 1.0))

    def scaled(
        self, x: Float[np.ndarray, "*points"], variable: int
    ) -> Float[np.ndarray, "*points"]:
        """Values in half-widths from the centre of the variable's range.

        Far outside they stop: one huge value must not decide a slope.
        """
        u = (x - self.centre[variable]) / self.half[variable]
        return np.clip(u, -_FAR, _FAR)


def _range_of(
    column: Float[np.ndarray, " n"],
    observed: Float[np.ndarray, " m"],
    low: float,
    high: float,
) -> tuple[float, float]:
    # Not the extremes: one outlier would stretch the range that the sines resolve.
    usual = (
        np.quantile(observed[np.isfinite(observed)], (0.01, 0.99))
        if np.isfinite(observed).any()
        else np.array([np.nan, np.nan])
    )
    if np.isfinite(low):
        # Where one may intervene counts; what else happens there need only be seen.
        return float(np.fmin(low, usual[0])), float(np.fmax(high, usual[1]))
    seen = column[np.isfinite(column)]
    if not len(seen):
        return -1.0, 1.0
    found = np.quantile(seen, (0.01, 0.99))
    if np.isfinite(usual).all():
        room = 1.5 * (usual[1] - usual[0])
        found = np.clip(found, usual[0] - room, usual[1] + room)
    return float(found[0]), float(found[1])


def sines(
    scaled: Float[np.ndarray, "*points"], count: int
) -> Float[np.ndarray, "*points {count}"]:
    """The smooth columns of a variable.

    Args:
        scaled: its values, as `Basis.scaled` gives them.
        count: how many sines.
    """
    angle = np.pi / (2 * EDGE) * (np.clip(scaled, -_REACH, _REACH) + EDGE)
    found = np.empty((count, *angle.shape))
    before = np.zeros_like(angle)
    here = np.sin(angle) / np.sqrt(EDGE)
    twice = 2 * np.cos(angle)
    # sin (k + 1) a = 2 cos a sin k a - sin (k - 1) a: a fifth of the time of sines.
    for k in range(count):
        found[k] = here
        before, here = here, twice * here - before
    return np.moveaxis(found, 0, -1)


def beyond(scaled: Float[np.ndarray, "*points"]) -> Float[np.ndarray, "*points 2"]:
    """How far values are below and above the range: 0 inside, towards 1 outside.

    Args:
        scaled: values, as `Basis.scaled` gives them.
    """
    out = np.stack([-scaled - _REACH, scaled - _REACH], axis=-1)
    return -np.expm1(-0.5 * (np.maximum(out, 0.0) / _OUTSIDE) ** 2)


def spectrum(count: int, length: float) -> Float[np.ndarray, " {count}"]:
    """Prior variance of each sine's weight, for functions of variance 1.

    Args:
        count: how many sines.
        length: over which such a function changes, in half-widths of the range.
    """
    frequencies = np.pi * np.arange(1, count + 1) / (2 * EDGE)
    return length * np.sqrt(2 * np.pi) * np.exp(-0.5 * (length * frequencies) ** 2)
