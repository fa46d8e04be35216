"""How far decoded weights are from the original ones."""

import dataclasses
import math

import numpy as np

_PART = 1 << 20  # numbers; divides every chunk of blocks alike


@dataclasses.dataclass(frozen=True, slots=True)
class Error:
    """A measured error.

    Attributes:
        energy: sum of (decoded - original)^2.
        largest: largest |decoded - original|.
    """

    energy: float = 0.0
    largest: float = 0.0

    @classmethod
    def between(cls, decoded: np.ndarray, original: np.ndarray) -> "Error":
        """Measure it, in float64, a part at a time: a model may be large."""
        decoded, original = decoded.reshape(-1), original.reshape(-1)
        found = cls()
        for at in range(0, decoded.size, _PART):
            gap = decoded[at : at + _PART].astype(np.float64)
            gap -= original[at : at + _PART].astype(np.float64)
            found += cls(float(gap @ gap), float(np.abs(gap).max()))
        return found

    def __add__(self, other: "Error") -> "Error":
        """The error of both parts together."""
        return Error(self.energy + other.energy, max(self.largest, other.largest))


def relative(error_energy: float, energy: float) -> float:
    """||decoded - original|| / ||original|| from their squares; 0 if both are 0."""
    return math.sqrt(error_energy / energy) if error_energy else 0.0


def rounded_up(value: float) -> float:
    """A float of 4 significant digits that is not below `value`: short and still true.

    >>> rounded_up(0.123412345), rounded_up(0.0)
    (0.1235, 0.0)
    """
    if value == 0:
        return 0.0
    rounded = float(f"{value:.3e}")
    if rounded >= value:
        return rounded
    return float(f"{value + 10.0 ** (math.floor(math.log10(value)) - 3):.3e}")
