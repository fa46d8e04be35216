"""What a step would cost a large tensor and how far off it would be, from a sample.

Rows evenly spread over the tensor are quantised for real and their symbols counted;
what does not grow with the tensor (tables, headers) is added as it is. With the
default sample an estimate is within about 0.3% of the bytes.
"""

import dataclasses
import math

import numpy as np

from ..arrays._error import Distortion
from ..codecs._blocks import numbers_per_chunk, row_length
from ..codecs._uniform import Step, to_values
from ..codecs.trellis import _encode as _trellis_block
from ..codecs.trellis._quantise import (
    Lanes,
    Part,
    classify_runs,
    quantise,
    sum_run_squares,
)

_SAMPLE = 1 << 15
_PIECE = 128  # numbers in a lane of a sample: many short lanes are quick


@dataclasses.dataclass(frozen=True)
class Point:
    """One point of a rate-distortion curve.

    Attributes:
        bytes: about how long the tensor will be.
        energy: about the sum of its squared errors.
    """

    bytes: float
    energy: float


def entropy(counts: np.ndarray) -> float:
    """Bits for each of the things counted."""
    share = counts[counts > 0] / counts.sum()
    return -float((share * np.log2(share)).sum())


@dataclasses.dataclass(frozen=True)
class Sample:
    """Some runs of a tensor, in place of all of them.

    Attributes:
        values: the numbers, flat.
        lanes: how they are cut up.
        classes: one for each lane.
        runs: how many runs the tensor has.
        classify_runs: entropy of a run's class, in bits.
        size: how many numbers the tensor has.
        chunks: in how many chunks these will be.
    """

    values: np.ndarray
    lanes: Lanes
    classes: np.ndarray
    runs: int
    classify_runs: float
    size: int
    chunks: int

    @classmethod
    def of(cls, array: np.ndarray) -> "Sample":
        """Choose the runs; `array` has at least one number."""
        flat = array.reshape(-1)
        whole = Lanes.of_rows(flat.size, row_length(array.shape))
        classes = classify_runs(flat, whole)
        full = flat.size // whole.run  # the last run may be shorter: left out
        piece = min(whole.run, _PIECE)
        if full == 0:  # the whole tensor is shorter than a run
            chosen, values, piece = classes, flat, flat.size
        else:
            rows = flat[: full * whole.run].reshape(full, whole.run)
            pieces = whole.run // piece
            # Evenly by size, so that loud and quiet rows have their share, and from
            # each one as few pieces as there are rows enough.
            most = max(1, _SAMPLE // piece)
            each = min(pieces, max(1, most // full))
            order = np.argsort(sum_run_squares(flat, whole)[:full], kind="stable")
            at = np.linspace(0, full - 1, min(full, max(1, most // each)))
            chosen_runs = order[np.unique(at.round()).astype(np.intp)]
            turn = np.arange(len(chosen_runs))[:, None] + np.arange(each)
            # The chosen rows first: a row's odd end would make a copy of all of them.
            cut = rows[chosen_runs][:, : pieces * piece].reshape(-1, pieces, piece)
            place = np.arange(len(chosen_runs))[:, None]
            values = cut[place, turn % pieces].reshape(-1)
            chosen = np.repeat(classes[chosen_runs], each)
        return cls(
            values=values,
            lanes=Lanes(values.size, piece, piece),
            classes=np.unique(chosen, return_inverse=True)[1].astype(np.uint8),
            runs=whole.runs,
            classify_runs=entropy(np.bincount(classes)),
            size=flat.size,
            chunks=-(-flat.size // numbers_per_chunk("trellis", array.shape)),
        )

    def at(self, step: Step) -> Point | None:
        """The point of a step; None where the numbers get too large."""
        (coded,) = quantise([Part(self.values, step, self.lanes, self.classes)])
        if coded is None:
            return None
        decoded = to_values(coded.flat, step, self.values.dtype)
        part = self.size / self.values.size
        bits, occurring = _trellis_block.coded_bits(coded)
        # Counted on few numbers, an entropy is too low (Miller 1955).
        if part > 1:
            bits += occurring / (2 * math.log(2))
        fixed = _trellis_block.side_bytes(coded.tables) * self.chunks
        side = self.classify_runs * self.runs / 8
        lanes = 3.25 * Lanes.of_rows(self.size, max(1, self.size // self.runs)).count
        return Point(
            part * bits / 8 + fixed + side + lanes,
            part * Distortion.between(decoded, self.values).energy,
        )
