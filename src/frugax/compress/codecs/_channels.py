"""`ChannelScaling`: a matrix's steps and GPTQ feedback from its calibrated channels."""

import dataclasses
import functools
import math

import numpy as np

from . import grid
from .steps import Step

# Longer channels are cut into equal pieces, each a lane not shorter than the second.
_LONGEST, _SHORTEST = 2 * grid.MAX_ROW_LANE, 256


@dataclasses.dataclass(frozen=True, eq=False)
class _Factors:
    """The lanes of some channels, their feedback and their weights after it."""

    lanes: grid.LaneLayout
    feedback: grid.Feedback | None
    weights: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class ChannelScaling:
    """Second moments of the channels of a matrix: its rows, or its columns.

    An error in channel j counts in proportion to its moment. With the whole matrix of
    moments the errors of channels also make up for each other (see `grid.Feedback`).

    Attributes:
        columns: whether a channel is a column (all numbers with the same indices but
            the first), and not a row (all numbers with the same indices but the last).
        moments: of each channel, > 0.
        gram: of all pairs of channels, positive definite, with the moments on its
            diagonal; None if it is not known.
        shape: of the array, of two axes or more.
        calibration: the digest of the calibration that measured them; empty without.
    """

    columns: bool
    moments: np.ndarray
    gram: np.ndarray | None
    shape: tuple[int, ...]
    calibration: str

    @classmethod
    def unscaled_columns(cls, shape: tuple[int, ...]) -> "ChannelScaling":
        """Return columns that have one step and no feedback: only coded one by one."""
        return cls(True, np.ones(math.prod(shape[1:])), None, shape, "")

    @property
    def form(self) -> grid.Form:
        """The form of the integers."""
        return grid.Form(columns=self.columns, scaled=bool(self.calibration))

    @property
    def inner(self) -> int:
        """How many numbers each channel has."""
        return self.shape[0] if self.columns else self.shape[-1]

    @functools.cached_property
    def log_weights(self) -> np.ndarray:
        """The binary logarithm of each channel's weight after feedback, float64."""
        # The chunks of very large tensors have somewhat less feedback than this.
        return np.log2(self._factor(0, len(self.moments), self.inner).weights)

    @functools.cached_property
    def weight(self) -> float:
        """The weight of a squared error over the squared scale of its channel."""
        return 2.0 ** float(self.log_weights.mean())

    @property
    def saved_bits(self) -> float:
        """The bits of each number that scales and feedback save at high rate."""
        return math.log2(float(self.moments.mean()) / self.weight) / 2

    def turn(self, values: np.ndarray) -> np.ndarray:
        """Arrange the flat numbers of whole rows channel by channel."""
        if not self.columns:
            return values
        rows = values.reshape(-1, math.prod(self.shape[1:]))
        return grid.transpose(rows).reshape(-1)

    def exponents(self, lanes: grid.LaneLayout, first: int = 0) -> np.ndarray | None:
        """Return the exponents of the runs of all channels from the first one on."""
        if not self.form.scaled:
            return None
        inner = -(-lanes.size // len(self.moments)) if self.columns else self.inner
        logs = self.log_weights[first : first + -(-lanes.size // inner)]
        # The mean over the numbers of each run, from the integral over all numbers.
        whole = np.concatenate([[0.0], np.cumsum(logs * inner)])
        ends = np.minimum(np.arange(lanes.runs + 1) * lanes.run, lanes.size)
        sums = np.interp(ends, np.arange(len(whole)) * inner, whole)
        means = np.diff(sums) / np.diff(ends)
        return grid.nearest_exponents(np.sqrt(self.weight / 2.0**means))

    def cut(self, values: np.ndarray, first: int, step: Step) -> grid.GridInput:
        """Return whole rows, from flat index `first` on, as a chunk to quantise."""
        turned = self.turn(values)
        channel = 0 if self.columns else first // self.inner
        count = len(self.moments) if self.columns else len(values) // self.inner
        factors = self._factor(channel, count, len(values) // count)
        exponents = self.exponents(factors.lanes, channel)
        classes = grid.classify_runs(turned, factors.lanes, exponents)
        return grid.GridInput(
            turned, step, factors.lanes, classes, exponents, factors.feedback
        )

    @functools.cached_property
    def _factors(self) -> dict[tuple[int, int, int], _Factors]:
        return {}

    def _factor(self, first: int, count: int, inner: int) -> _Factors:
        """Return the lanes of some channels, their feedback and their weights."""
        # Kept, because drafts differ in their steps alone.
        key = first, count, inner
        if key not in self._factors:
            there = slice(first, first + count)
            lanes, feedback = _align_lanes(count, inner), None
            weights = self.moments[there]
            if lanes is not None and self.gram is not None:
                gram = self.gram[there, there].astype(np.float64)
                run, lane = lanes.run, lanes.length
                feedback, weights = grid.Feedback.factor(
                    gram, row=inner, run=run, lane=lane
                )
            lanes = lanes or grid.LaneLayout.of_rows(count * inner, inner)
            self._factors[key] = _Factors(lanes, feedback, weights)
        return self._factors[key]


def _align_lanes(count: int, inner: int) -> grid.LaneLayout | None:
    """Cut channels into runs of whole channels or equal pieces; None if none fit."""
    if inner > _LONGEST:
        for pieces in range(-(-inner // _LONGEST), inner // _SHORTEST + 1):
            if inner % pieces == 0:
                run = inner // pieces
                return grid.LaneLayout(count * inner, run, run)
        return None
    if inner > grid.MAX_ROW_LANE:
        return grid.LaneLayout(count * inner, inner, inner)
    lanes = grid.LaneLayout.of_rows(count * inner, inner)
    return None if lanes.size % lanes.run or lanes.run < 3 else lanes
