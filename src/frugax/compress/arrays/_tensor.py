"""`Tensor`: one named array and its statistics, measured a part at a time."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterable, Iterator

import numpy as np

from ._error import sum_squares
from ._leaves import FLOATS_OF_ML_DTYPES, QUANTISABLE
from ._mapped import release

_PART = 1 << 22  # numbers
_NAMED = 20  # tensors that a warning names


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """One array of a tree.

    Attributes:
        name: its name in the tree.
        array: its values; contiguous, little-endian; never written to.
    """

    name: str
    array: np.ndarray

    @functools.cached_property
    def energy(self) -> float:
        """Sum of squares of a finite float tensor; 0 for any other: not quantisable."""
        if self.array.dtype.name not in QUANTISABLE or not self.array.size:
            return 0.0
        # NaN, infinities and overflow all give a sum that is not finite, so one pass
        # finds the tensors that must stay exact and measures the others.
        total = math.fsum(map(sum_squares, self.parts()))
        return total if math.isfinite(total) else 0.0

    @functools.cached_property
    def max_abs(self) -> float:
        """Largest absolute value of a quantisable tensor."""
        if not self.energy:
            return 0.0
        return max(float(max(p.max(), -p.min())) for p in self.parts())

    def count_not_finite(self) -> int:
        """Return how many numbers are NaN or infinite."""
        array = self.array
        can_be = array.dtype.kind in "fc" or array.dtype.name in FLOATS_OF_ML_DTYPES
        if self.energy or not can_be:  # the sum of squares is finite
            return 0
        return sum(int(p.size - np.isfinite(p).sum()) for p in self.parts())

    @property
    def rms(self) -> float:
        """Root mean square of a finite float tensor."""
        return math.sqrt(self.energy / max(1, self.array.size))

    def parts(self) -> Iterator[np.ndarray]:
        """Yield views of at most a block: no float64 copy of a whole tensor."""
        flat = self.array.reshape(-1)
        for i in range(0, flat.size, _PART):
            part = flat[i : i + _PART]
            try:
                yield part
            finally:  # also where the caller stops early
                release(part)


def warn_of_not_finite(tensors: Iterable[Tensor], *, stack_level: int) -> None:
    """Warn of NaN and infinite numbers, which a training that diverged leaves."""
    counts = {s.name or "the array": s.count_not_finite() for s in tensors}
    found = [f"{name!r} ({count:,})" for name, count in counts.items() if count]
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        warnings.warn(
            "these tensors have NaN or infinite numbers, and are kept as they are: "
            f"{', '.join(found[:_NAMED])}{more}.",
            stacklevel=stack_level + 1,
        )
