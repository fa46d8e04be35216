"""What is compressed: each tensor with all that a search asks of it again and again."""

import dataclasses
import functools
import math

import numpy as np

from ._arrays import QUANTISABLE
from ._codecs import lossless_blocks, quantised_blocks, quantised_bytes
from ._container import Encoded, Record, digest_of
from ._error import Error, relative, rounded_up
from ._quantised import Step, levels_of, values_of

# Below this, or with one axis (biases, norms), a tensor is "small": it weighs little
# and errs much.
_SMALL_SIZE = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One tensor to compress.

    Attributes:
        name: its name in the tree.
        array: its values; contiguous, little-endian; never written to.
    """

    name: str
    array: np.ndarray

    @functools.cached_property
    def energy(self) -> float:
        """Sum of squares if this is a finite float tensor, else 0: not quantisable."""
        if self.array.dtype.name not in QUANTISABLE or not self.array.size:
            return 0.0
        flat = self.array.reshape(-1).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(flat @ flat)
        return total if math.isfinite(total) else 0.0

    @functools.cached_property
    def largest(self) -> float:
        """Largest absolute value of a quantisable tensor."""
        return float(np.abs(self.array).max()) if self.energy else 0.0

    @property
    def rms(self) -> float:
        """Root of the mean square of a quantisable tensor."""
        return math.sqrt(self.energy / max(1, self.array.size))

    @property
    def small(self) -> bool:
        """Whether to keep it exact as long as that costs little."""
        return self.array.ndim < 2 or self.array.size < _SMALL_SIZE

    @functools.cached_property
    def exact(self) -> Encoded:
        """The tensor coded without loss."""
        codec, blocks = lossless_blocks(self.array)
        record = self._record(codec, None, self.array, Error())
        return Encoded(record, blocks, Error())

    @functools.cached_property
    def exact_bytes(self) -> int:
        """Bytes of the lossless coding."""
        return sum(map(len, self.exact.blocks))

    def estimated_bytes(self, step: Step | None) -> float:
        """About how long the shorter of the two codings is."""
        levels = self.levels(step)
        if levels is None:
            return self.exact_bytes
        return min(self.exact_bytes, quantised_bytes(levels))

    def encoded(self, step: Step | None) -> Encoded:
        """The shorter of the two codings, for real; the exact one if equal."""
        levels = self.levels(step)
        if step is None or levels is None:
            return self.exact
        blocks = quantised_blocks(levels)
        if sum(map(len, blocks)) >= self.exact_bytes:
            return self.exact
        values = values_of(levels, step, self.array.dtype)
        error = Error.between(values, self.array)
        return Encoded(self._record("quantised", step, values, error), blocks, error)

    def levels(self, step: Step | None) -> np.ndarray | None:
        """The flat levels at a step; None if the tensor cannot be quantised so."""
        if step is None or not self.energy:
            return None
        return levels_of(self.array.reshape(-1), step)

    def error_at(self, step: Step | None) -> Error:
        """The error that quantising with this step makes."""
        levels = self.levels(step)
        if step is None or levels is None:
            return Error()
        return Error.between(values_of(levels, step, self.array.dtype), self.array)

    def _record(
        self,
        codec: str,
        step: Step | None,
        values: np.ndarray,
        error: Error,
    ) -> Record:
        return Record(
            name=self.name,
            dtype=self.array.dtype.name,
            shape=self.array.shape,
            codec=codec,
            step=step,
            rel_error=rounded_up(relative(error.energy, self.energy)),
            max_abs=rounded_up(error.largest),
            digest=digest_of(values.reshape(-1).view(np.uint8)),
            chunks=(),
        )
