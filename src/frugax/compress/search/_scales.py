"""Estimate a tree's bytes and error at a common scale, and allocate bytes to tensors.

With weights w on squared errors, the Lagrangian optimum has one slope dD/dR for all
tensors (Everett 1963, Operations Research 11(3); for Gaussian sources it is reverse
water-filling, Cover & Thomas, Elements of Information Theory, 10.3.3). At high rate
that gives each tensor a step of one common factor times 1/sqrt(w), its unit.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from frugax.allocate import multiple_choice_knapsack

from ..codecs import MAX_STEP, Step, step_below
from ._draft import Steps
from ._rates import Rates
from ._sample import RatePoint
from ._source import TRELLIS_STEP, Source

# Scales half a power of two apart are sampled; between them points are interpolated.
_NOTCH = 0.5
# The options of a tensor, in powers of two relative to the step of equal slopes.
_OPTIONS = (-2.0, -1.0, -0.5, -0.25, -0.125, 0.0, 0.125, 0.25, 0.5, 1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class ScaleModel:
    """Rate-distortion estimates of all tensors.

    A scale is the binary logarithm of step over unit, and a tensor's unit 1 over the
    root of its weight: at one scale slopes are equal.

    Attributes:
        sources: the tensors.
        weights: of their squared errors, by name.
        capped: whether steps stop where finer ones would have integers out of range.
        rates: estimates of each tensor.
    """

    sources: tuple[Source, ...]
    weights: Mapping[str, float]
    capped: bool = False
    rates: Rates = dataclasses.field(default_factory=Rates)

    def allocate(
        self, scale: float, room: float, spare: float
    ) -> tuple[dict[str, float], float]:
        """Choose the scale of each tensor within a number of bytes."""
        self._sample_at([scale + option for option in _OPTIONS])
        cost = np.zeros((len(self.sources), len(_OPTIONS) + 1), np.int64)
        loss = np.full(cost.shape, np.inf)
        for row, source in enumerate(self.sources):
            cost[row, -1] = math.ceil(self.rates.exact_bytes(source))
            loss[row, -1] = 0.0
            if not source.quantisable:
                continue
            for column, option in enumerate(_OPTIONS):
                point = self._interpolate(source, scale + option)
                cost[row, column] = math.ceil(point.bytes)
                loss[row, column] = point.loss * self.weights[source.name]
        # All tensors at one scale must stay possible, although costs are rounded up.
        quantisable = np.array([s.quantisable for s in self.sources])
        common = np.where(quantisable, cost[:, _OPTIONS.index(0.0)], cost[:, -1])
        limit = max(math.ceil(room), int(common.sum()))
        # Tensors that nearly reach their exact size become exact, the cheapest first.
        extra = np.maximum(cost[:, -1] - common, 0)
        order = np.argsort(extra, kind="stable")
        order = order[np.cumsum(extra[order]) <= spare]
        loss[order, :-1] = np.inf
        limit += int(extra[order].sum())
        # The last option of each row is the exact coding; an infinite loss rules an
        # option out.
        allocation = multiple_choice_knapsack(cost, loss, limit=limit)
        scales = {
            source.name: scale + _OPTIONS[option]
            for source, option in zip(self.sources, allocation.chosen, strict=True)
            if option < len(_OPTIONS) and source.quantisable
        }
        return scales, allocation.gap

    def total(self, scale: float) -> RatePoint:
        """Estimate all tensors at one scale; the loss is the weighted squared error."""
        self._sample_at([scale])
        points = {s.name: self._interpolate(s, scale) for s in self.sources}
        return RatePoint(
            bytes=math.fsum(point.bytes for point in points.values()),
            energy=math.fsum(point.energy for point in points.values()),
            loss=math.fsum(w * points[name].loss for name, w in self.weights.items()),
        )

    def _sample_at(self, scales: Sequence[float]) -> None:
        """Estimate all tensors at the sampled scales next to some, at once."""
        notches = {math.floor(scale / _NOTCH) + n for scale in scales for n in (0, 1)}
        self.rates.make(
            (source, self.step_at(source, _NOTCH * n))
            for source in self.sources
            for n in sorted(notches)
        )

    def _interpolate(self, source: Source, scale: float) -> RatePoint:
        """Estimate a tensor at a scale from the two sampled scales next to it."""
        notch = math.floor(scale / _NOTCH)
        low, high = (
            self.rates.at(source, self.step_at(source, _NOTCH * n))
            for n in (notch, notch + 1)
        )
        part = scale / _NOTCH - notch
        length = low.bytes + part * (high.bytes - low.bytes)
        if not low.energy:
            return RatePoint(length, part * high.energy, part * high.loss)
        # Bytes are linear in the logarithm of the step, and the error is a power of it.
        return RatePoint(
            length,
            low.energy * (high.energy / low.energy) ** part,
            low.loss * (high.loss / low.loss) ** part,
        )

    def steps_at(self, scale: float) -> Steps:
        """Return the steps of all tensors at one scale."""
        return lambda source: self.step_at(source, scale)

    def step_at(self, source: Source, scale: float) -> Step | None:
        """Return the step of a tensor at a scale; None if it stays exact."""
        if not source.quantisable:
            return None
        # A step that makes zeros of everything need not be longer, and must not pass
        # the range of steps: that would be exact.
        limit = min(4 * source.max_abs, MAX_STEP.size)
        step = step_below(min(2.0**scale * self._unit(source), limit))
        if step is None:
            return None
        if self.capped:
            step = source.cap_step(step)
        # A scale stands for an error, and a trellis makes the error of a uniform grid
        # with a finer step.
        finer = step_below(TRELLIS_STEP * step.size)
        if finer is not None and source.form_at(finer).trellis:
            return finer
        return step

    def _unit(self, source: Source) -> float:
        return 1 / math.sqrt(self.weights[source.name])

    @functools.cached_property
    def coarsest(self) -> float:
        """The scale where every level is zero: a quarter step is the largest number."""
        ratios = [4 * s.max_abs / self._unit(s) for s in self.sources if s.quantisable]
        return math.log2(max(ratios, default=1.0))

    @functools.cached_property
    def finest(self) -> float:
        """The scale where levels are out of range, so that tensors come out exact."""
        # Two powers of two beyond the largest level: 2^24, and 2^52 for float64
        # weights.
        wide = any(source.array.dtype.itemsize == 8 for source in self.sources)
        ratios = [s.rms / self._unit(s) for s in self.sources if s.quantisable]
        return math.log2(min(ratios, default=1.0)) - (54 if wide else 26)
