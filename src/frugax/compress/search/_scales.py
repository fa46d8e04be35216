"""Estimate a tree's bytes and error at a common scale, and allocate bytes to tensors.

With weights w on squared errors, the Lagrangian optimum has one slope dD/dR for all
tensors (Everett 1963, Operations Research 11(3); for Gaussian sources it is reverse
water-filling, Cover & Thomas, Elements of Information Theory, 10.3.3). At high rate
that gives each tensor a step of one common factor times 1/sqrt(w), its unit.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from frugax.allocate import multiple_choice_knapsack

from ..codecs import MAX_STEP, Step, step_below
from ._draft import Steps
from ._rates import Rates
from ._sample import RatePoint
from ._source import TRELLIS_STEP, Source

# Scales half a power of two apart are sampled; between them points are interpolated.
_NOTCH = 0.5
# The options of a tensor, in powers of two relative to the step of equal slopes. Those
# of later bands are sampled for tensors that take one of the outermost before.
_OPTIONS = (0.0, 0.125, -0.125, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0)
_BANDS = range(7), range(7, 9), range(9, 11)
_CLOSE = 1e-3  # in powers of two: less than 0.1% of the bytes
_MAX_SAMPLINGS = 50


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
        cost = np.zeros((len(self.sources), len(_OPTIONS) + 1), np.int64)
        # The last option of each row is the exact coding; an infinite loss rules an
        # option out.
        loss = np.full(cost.shape, np.inf)
        cost[:, -1] = [math.ceil(self.rates.exact_bytes(s)) for s in self.sources]
        loss[:, -1] = 0.0
        quantisable = np.array([source.quantisable for source in self.sources])
        self._price(cost, loss, quantisable, scale, _BANDS[0])
        # All tensors at one scale must stay possible, although costs are rounded up.
        common = np.where(quantisable, cost[:, 0], cost[:, -1])
        limit = max(math.ceil(room), int(common.sum()))
        # Tensors that nearly reach their exact size become exact, the cheapest first.
        extra = np.maximum(cost[:, -1] - common, 0)
        order = np.argsort(extra, kind="stable")
        order = order[np.cumsum(extra[order]) <= spare]
        loss[order, :-1] = np.inf
        limit += int(extra[order].sum())
        allocation = multiple_choice_knapsack(cost, loss, limit=limit)
        # The bytes of a tensor are a convex function of its error, about: where an
        # inner option is the best, none further out is better.
        for before, band in itertools.pairwise(_BANDS):
            outermost = np.isin(allocation.chosen, before[-2:])
            if not outermost.any():
                break
            self._price(cost, loss, outermost, scale, band)
            allocation = multiple_choice_knapsack(cost, loss, limit=limit)
        scales = {
            source.name: scale + _OPTIONS[option]
            for source, option in zip(self.sources, allocation.chosen, strict=True)
            if option < len(_OPTIONS) and source.quantisable
        }
        return scales, allocation.gap

    def _price(
        self,
        cost: np.ndarray,
        loss: np.ndarray,
        wanted: np.ndarray,
        scale: float,
        options: Sequence[int],
    ) -> None:
        """Fill in the bytes and losses of some tensors at some options."""
        rows = np.flatnonzero(wanted).tolist()
        scales = [scale + _OPTIONS[column] for column in options]
        self._sample_at([self.sources[row] for row in rows], scales)
        for row, (column, at) in itertools.product(
            rows, zip(options, scales, strict=True)
        ):
            source = self.sources[row]
            point = self._interpolate(source, at)
            cost[row, column] = math.ceil(point.bytes)
            loss[row, column] = point.loss * self.weights[source.name]

    def find(self, miss: Callable[[float], float]) -> float:
        """Find the scale where an increasing function is zero; the nearest end if none.

        Sampling is what takes time, so that nearly all places are sampled scales.

        Args:
            miss: of a scale: by about how much it is too large.
        """
        at, low, high = self._common, self.finest, self.coarsest
        ends: dict[float, float] = {}
        for _ in range(_MAX_SAMPLINGS):
            ends[at] = now = miss(at)
            if abs(now) < _CLOSE or (at == low and now > 0) or (at == high and now < 0):
                break
            low, high = (low, at) if now > 0 else (at, high)
            if high - low < _CLOSE:
                break
            at -= now
            if low in ends and high in ends:
                part = ends[low] / (ends[low] - ends[high])
                if high - low > _NOTCH:  # kept off the ends of the bracket
                    part = min(0.9, max(0.1, part))
                at = low + part * (high - low)
            at = min(max(at, low), high)
            sampled = _NOTCH * round(at / _NOTCH)
            if low < sampled < high:
                at = sampled
        return at

    def total(self, scale: float) -> RatePoint:
        """Estimate all tensors at one scale; the loss is the weighted squared error."""
        self._sample_at(self.sources, [scale])
        points = {s.name: self._interpolate(s, scale) for s in self.sources}
        return RatePoint(
            bytes=math.fsum(point.bytes for point in points.values()),
            energy=math.fsum(point.energy for point in points.values()),
            loss=math.fsum(w * points[name].loss for name, w in self.weights.items()),
        )

    def _sample_at(self, sources: Iterable[Source], scales: Sequence[float]) -> None:
        """Estimate tensors at the sampled scales next to some, at once."""
        notches = {notch for scale in scales for notch in _notches(scale)}
        self.rates.make(
            (source, self.step_at(source, _NOTCH * n))
            for source in sources
            for n in sorted(notches)
        )

    def _interpolate(self, source: Source, scale: float) -> RatePoint:
        """Estimate a tensor at a scale from the two sampled scales next to it."""
        low, high = (
            self.rates.at(source, self.step_at(source, _NOTCH * n))
            for n in _notches(scale)
        )
        part = scale / _NOTCH % 1
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
    def _common(self) -> float:
        """The scale where steps are the root mean squares, in the mean over numbers."""
        known = [s for s in self.sources if s.quantisable]
        logs = [s.array.size * math.log2(s.rms / self._unit(s)) for s in known]
        mean = math.fsum(logs) / max(1, sum(s.array.size for s in known))
        return _NOTCH * round(min(max(mean, self.finest), self.coarsest) / _NOTCH)

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


def _notches(scale: float) -> tuple[int, int]:
    return math.floor(scale / _NOTCH), math.ceil(scale / _NOTCH)
