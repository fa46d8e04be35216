"""`Calibration`: how errors in the channels of each tensor change a model's outputs."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..arrays import release
from ..codecs import BLOCK, ChannelScaling, grid, row_length
from ._source import Source

# The share of the mean moment that is added to each, for what calibration batches lack.
# Chosen on MiniLM, on sentences from other files than those calibrated on: 0.01 to 0.1
# are within 0.1 dB for matrices, 0.1 to 1 for the rows of its embedding.
_DAMPING, _GRAM_DAMPING = 0.25, 0.1

# From arrays by name to the relative error of a model's outputs.
OutputError = Callable[[Mapping[str, np.ndarray]], float]


@dataclasses.dataclass(frozen=True, eq=False)
class ChannelMoments:
    """Second moments of the gradients of one tensor's channels.

    Attributes:
        mean_squares: of each channel.
        gram: the mean product of each pair of channels, float32; None if there are too
            many.
        count: of the gradients that these are means over, times the numbers of a
            channel.
    """

    mean_squares: np.ndarray
    gram: np.ndarray | None
    count: int

    def scale(
        self, shape: tuple[int, ...], *, columns: bool, calibration: str
    ) -> ChannelScaling | None:
        """Return the channels of an array of this shape; None if none matters."""
        mean = float(self.mean_squares.mean())
        if not mean > 0:
            return None
        if self.gram is None:
            moments = self.mean_squares + _DAMPING * mean
            return ChannelScaling(columns, moments, None, shape, calibration)
        # A covariance from few gradients has eigenvalues that are too small.
        damping = (_GRAM_DAMPING + len(self.gram) / self.count) * mean
        gram = self.gram + np.float32(damping) * np.eye(
            len(self.gram), dtype=np.float32
        )
        moments = self.mean_squares + damping
        return ChannelScaling(columns, moments, gram, shape, calibration)


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration(Mapping[str, float]):
    """How errors in weights change a model's outputs; `calibrate` measures it.

    As a mapping it has the sensitivity of each float tensor: the mean squared gradient
    of its numbers. Given to `plan(..., sensitivity=)` it also sets the steps of rows or
    columns, and lets the errors of some make up for those of others.

    Attributes:
        sensitivity: of each float tensor, by name.
        rows: moments of the rows of tensors of two axes or more, by name.
        columns: of their columns.
        output_error: from decoded arrays by name to the relative error of the outputs
            on the batches that were held out; None without such batches.
        calibrated_error: the same on the batches that moments come from.
        energy: the mean over these batches of the squared norm of the outputs.
    """

    sensitivity: Mapping[str, float]
    rows: Mapping[str, ChannelMoments]
    columns: Mapping[str, ChannelMoments]
    output_error: OutputError | None = None
    calibrated_error: OutputError | None = None
    energy: float = 0.0

    def predict(self, arrays: Mapping[str, np.ndarray]) -> float | None:
        """Return the error on the batches that were calibrated on, if they are kept."""
        return None if self.calibrated_error is None else self.calibrated_error(arrays)

    def measure(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Return the larger of both errors of the outputs; NaN without any."""
        errors = (self.output_error, self.calibrated_error)
        found = [error(arrays) for error in errors if error is not None]
        return float(np.max(found)) if found else math.nan

    def __getitem__(self, name: str) -> float:
        return self.sensitivity[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sensitivity)

    def __len__(self) -> int:
        return len(self.sensitivity)

    def __repr__(self) -> str:
        grams = sum(m.gram is not None for m in [*self.rows.values()])
        return f"Calibration({len(self)} tensors, {grams} with Gram matrices of rows)"

    @functools.cached_property
    def digest(self) -> str:
        """Names this calibration in plans: 32 hexadecimal digits of a SHA-256."""
        total = hashlib.sha256(repr(sorted(self.sensitivity.items())).encode())
        for view in (self.rows, self.columns):
            for name in sorted(view):
                moments = view[name]
                total.update(np.ascontiguousarray(moments.mean_squares).data)
                if moments.gram is not None:
                    total.update(np.ascontiguousarray(moments.gram).data)
        return total.hexdigest()[:32]

    def scale(self, source: Source) -> Source:
        """Give a tensor steps by rows or columns, whichever save more; or neither."""
        shape, best, most = source.array.shape, source, 0.0
        if not (source.quantisable and source.can_scale) or len(shape) < 2:
            return source
        row = row_length(shape)
        numbers = BLOCK // row * row or BLOCK
        for columns, view in ((False, self.rows), (True, self.columns)):
            # Chunks hold whole channels.
            if source.name not in view or numbers % (row if columns else shape[-1]):
                continue
            scaling = view[source.name].scale(
                shape, columns=columns, calibration=self.digest
            )
            if scaling is None:
                continue
            lanes = grid.LaneLayout.of_rows(source.array.size, scaling.inner)
            exponents = scaling.exponents(lanes)
            assert exponents is not None  # a calibration has scales
            scales = grid.pack_exponents(exponents)
            saved = scaling.saved_bits * source.array.size - 8 * len(scales)
            if saved > most:
                best, most = dataclasses.replace(source, scaling=scaling), saved
        release(source.array)
        return best
