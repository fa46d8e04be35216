"""All tensors of a tree at one scale, by estimate; and the best choice around it."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from frugax.allocate import multiple_choice_knapsack

from ..codecs._uniform import MOST_STEP, Step, step_below
from ._draft import Steps
from ._sample import Point
from ._source import TRELLIS_STEP, Source

# Sampled are scales half a power of two apart; in between is computed.
_NOTCH = 0.5
# Options of a tensor, in powers of two of the step that equal slopes give it.
_OPTIONS = (-2.0, -1.0, -0.5, -0.25, -0.125, 0.0, 0.125, 0.25, 0.5, 1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class ScaleModel:
    """What steps make of all tensors.

    A scale is the binary logarithm of step over unit, and a tensor's unit 1 over the
    root of its weight: at one scale slopes are equal.

    Attributes:
        sources: the tensors.
        weights: what a squared error of each is worth, by name.
        capped: whether steps are no finer than layers are worth.
    """

    sources: tuple[Source, ...]
    weights: Mapping[str, float]
    capped: bool = False

    def allocate(
        self, scale: float, room: float, spare: float
    ) -> tuple[dict[str, float], float]:
        """The best scale of each tensor within `room` bytes, and the gap to the bound.

        Tensors that are best kept exact have none, and those that become so for `spare`
        bytes more.
        """
        cost = np.zeros((len(self.sources), len(_OPTIONS) + 1), np.int64)
        loss = np.full(cost.shape, np.inf)
        for row, source in enumerate(self.sources):
            cost[row, -1], loss[row, -1] = source.exact_cost_bytes, 0.0
            if not source.quantisable:
                continue
            for column, option in enumerate(_OPTIONS):
                point = self._point(source, scale + option)
                cost[row, column] = math.ceil(point.bytes)
                loss[row, column] = point.energy * self.weights[source.name]
        # All at one scale is a choice, whatever rounding up has added to it.
        middle = np.array([s.quantisable for s in self.sources])
        evenly = np.where(middle, cost[:, _OPTIONS.index(0.0)], cost[:, -1])
        limit = max(math.ceil(room), int(evenly.sum()))
        more = np.maximum(cost[:, -1] - evenly, 0)
        order = np.argsort(more, kind="stable")
        order = order[np.cumsum(more[order]) <= spare]
        loss[order, :-1] = np.inf
        limit += int(more[order].sum())
        found = multiple_choice_knapsack(cost, loss, limit=limit)
        scales = {
            source.name: scale + _OPTIONS[option]
            for source, option in zip(self.sources, found.chosen, strict=True)
            if option < len(_OPTIONS) and source.quantisable
        }
        return scales, found.gap

    def total_bytes(self, scale: float) -> float:
        """About the bytes of all tensors at one scale."""
        return math.fsum(self._point(s, scale).bytes for s in self.sources)

    def total_energy(self, scale: float) -> float:
        """About the sum of squared errors of all tensors at one scale."""
        return math.fsum(self._point(s, scale).energy for s in self.sources)

    def _point(self, source: Source, scale: float) -> Point:
        """The tensor at a scale, between the two notches next to it."""
        notch = math.floor(scale / _NOTCH)
        low, high = (
            source.estimate(self.step(source, _NOTCH * n)) for n in (notch, notch + 1)
        )
        part = scale / _NOTCH - notch
        between = low.bytes + part * (high.bytes - low.bytes)
        if not low.energy:
            return Point(between, part * high.energy)
        # Bytes fall in a straight line, and error grows by a power.
        return Point(between, low.energy * (high.energy / low.energy) ** part)

    def steps(self, scale: float) -> Steps:
        return lambda source: self.step(source, scale)

    def step(self, source: Source, scale: float) -> Step | None:
        if not source.quantisable:
            return None
        # A step that makes zeros of everything need not be longer, and must not pass
        # the range of steps: that would be exact.
        most = min(4 * source.max_abs, MOST_STEP.size)
        step = step_below(min(2.0**scale * self._unit(source), most))
        if self.capped and step is not None:
            step = source.cap_step(step)
        finer = None if step is None else step_below(TRELLIS_STEP * step.size)
        if finer is not None and source.codec_at(finer) == "trellis":
            return finer
        return step

    def _unit(self, source: Source) -> float:
        return 1 / math.sqrt(self.weights[source.name])

    @functools.cached_property
    def coarsest(self) -> float:
        """Where every level is zero: a quarter step is the largest number."""
        ratios = [4 * s.max_abs / self._unit(s) for s in self.sources if s.quantisable]
        return math.log2(max(ratios, default=1.0))

    @functools.cached_property
    def finest(self) -> float:
        """Where levels are too large for the codec, so that tensors come out exact."""
        wide = any(source.array.dtype.itemsize == 8 for source in self.sources)
        ratios = [s.rms / self._unit(s) for s in self.sources if s.quantisable]
        return math.log2(min(ratios, default=1.0)) - (54 if wide else 26)
