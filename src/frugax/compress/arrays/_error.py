"""`Distortion`: the measured error of decoded weights against their originals."""

import dataclasses
import math

import numpy as np

# Numbers compared at once: their float64 copies stay in a processor's cache.
_PART = 1 << 15


@dataclasses.dataclass(frozen=True, slots=True)
class Distortion:
    """A measured error.

    Attributes:
        energy: sum of (decoded - original)^2.
        max_abs: largest |decoded - original|.
    """

    energy: float = 0.0
    max_abs: float = 0.0

    @classmethod
    def between(cls, decoded: np.ndarray, original: np.ndarray) -> "Distortion":
        """Measure it in float64, one part at a time: a model may be large."""
        decoded, original = decoded.reshape(-1), original.reshape(-1)
        total = cls()
        for start in range(0, decoded.size, _PART):
            error = decoded[start : start + _PART].astype(np.float64)
            error -= original[start : start + _PART]
            largest = max(float(error.max()), -float(error.min()))
            total += cls(_dot(error, error), largest)
        return total

    def __add__(self, other: "Distortion") -> "Distortion":
        """The error of both parts together."""
        return Distortion(self.energy + other.energy, max(self.max_abs, other.max_abs))


def sum_squares(values: np.ndarray) -> float:
    """Return the sum of squares of a flat array, in float64; it may overflow."""
    parts: list[float] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, values.size, _PART):
            part = values[start : start + _PART].astype(np.float64)
            parts.append(_dot(part, part))
    return sum(parts)


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    # Not by BLAS, which starts threads for it, and sums by as many as there are.
    return float(np.einsum("i,i->", a, b))


def relative_error(error_energy: float, energy: float) -> float:
    """Return ||decoded - original|| / ||original|| from their squares; 0 for 0 / 0."""
    if not error_energy:
        return 0.0
    # A tensor without energy is kept exact, so an error never meets a zero here.
    return math.sqrt(error_energy / energy)


def round_up(value: float) -> float:
    """Round to 4 significant digits, upwards: short in the header and still true.

    >>> round_up(0.123412345), round_up(0.0)
    (0.1235, 0.0)
    """
    if value == 0:
        return 0.0
    # Text rounds a decimal once; scaling by a power of ten and back would round twice.
    rounded = float(f"{value:.3e}")
    if rounded >= value:
        return rounded
    return float(f"{value + 10.0 ** (math.floor(math.log10(value)) - 3):.3e}")
