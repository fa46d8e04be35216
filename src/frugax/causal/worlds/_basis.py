"""Functions of one variable, from which a mechanism is put together.

A smooth function on an interval is a sum of sines whose weights have a known prior
variance (a Gaussian process in its Laplace eigenbasis), so it costs a regression on some
twenty columns and a sample of it is a sample of their weights.

References:
    Solin & Särkkä 2020, Statistics and Computing 30:419-446.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

# The sines vanish at the ends of [-EDGE, EDGE], in half-widths of a variable's range: far
# enough outside to leave the range free, near enough not to waste sines.
EDGE = 1.5
# Beyond this the smooth part stays as it is: no sine says anything there.
_REACH = 1.1


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
        low: Float[np.ndarray, " d"],
        high: Float[np.ndarray, " d"],
    ) -> "Basis":
        """The ranges that data and interventions cover together.

        Args:
            values: the data; NaN is missing.
            low: least value of an intervention; NaN where there are none.
            high: greatest value of an intervention; NaN where there are none.
        """
        seen = np.isfinite(values)
        safe = np.where(seen, values, 0.0)
        # Not the extremes: one outlier would stretch the range that the sines resolve.
        nothing = not len(values)
        quantiles = np.zeros((2, len(low))) if nothing else np.full((2, len(low)), 0.0)
        for j in range(len(low)):
            column = safe[seen[:, j], j] if len(values) else np.zeros(0)
            quantiles[:, j] = (
                np.quantile(column, (0.01, 0.99)) if len(column) else (np.nan, np.nan)
            )
        low = np.fmin(quantiles[0], low)
        high = np.fmax(quantiles[1], high)
        low, high = np.where(np.isfinite(low), low, -1.0), np.where(
            np.isfinite(high), high, 1.0
        )
        half = (high - low) / 2
        return cls((low + high) / 2, np.where(half > 1e-9, half, 1.0))

    def scaled(
        self, x: Float[np.ndarray, "*points"], variable: int
    ) -> Float[np.ndarray, "*points"]:
        """Values in half-widths from the centre of the variable's range."""
        return (x - self.centre[variable]) / self.half[variable]


def sines(
    scaled: Float[np.ndarray, "*points"], count: int
) -> Float[np.ndarray, "*points {count}"]:
    """The smooth columns of a variable.

    Args:
        scaled: its values, as `Basis.scaled` gives them.
        count: how many sines.
    """
    inside = np.clip(scaled, -_REACH, _REACH) + EDGE
    frequencies = np.pi * np.arange(1, count + 1) / (2 * EDGE)
    return np.sin(inside[..., None] * frequencies) / np.sqrt(EDGE)


def spectrum(count: int, length: float) -> Float[np.ndarray, " {count}"]:
    """Prior variance of each sine's weight, for functions of variance 1.

    Args:
        count: how many sines.
        length: over which such a function changes, in half-widths of the range.
    """
    frequencies = np.pi * np.arange(1, count + 1) / (2 * EDGE)
    return length * np.sqrt(2 * np.pi) * np.exp(-0.5 * (length * frequencies) ** 2)
