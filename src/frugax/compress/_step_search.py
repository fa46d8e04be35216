"""The search for the steps of one tree: estimates first, then real files."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from frugax.allocate import best_one_each

from ._draft import Draft, Progress, Steps, draft_of
from ._error import relative
from ._estimate import Point
from ._meet import meet
from ._quantised import MOST_STEP, Step, step_below
from ._sources import TRELLIS_STEP, Source
from ._writer import write

# The file should be within this share of the limit; searching goes on until it is.
_CLOSE = 0.005
_CLOSE_ERROR = 0.03  # in powers of two: 2% below the error allowed
_MOST_FILES = 8
# Below this share of the original bytes it may be that no file is short enough.
_TIGHT = 0.05
# Sampled are scales half a power of two apart; in between is computed.
_NOTCH = 0.5
# Options of a tensor, in powers of two of the step that equal slopes give it.
_OPTIONS = (-2.0, -1.0, -0.5, -0.25, -0.125, 0.0, 0.125, 0.25, 0.5, 1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class StepSearch:
    """The search for one tree.

    Everywhere `scale` is the binary logarithm of step / `_unit(source)`.
    """

    sources: tuple[Source, ...]
    structure: Any
    weights: Mapping[str, float]
    progress: Progress

    @functools.cached_property
    def about_exact_bytes(self) -> float:
        """About how long everything is without loss; repeats are not seen."""
        return sum(source.about_exact_bytes for source in self.sources)

    @functools.cached_property
    def exact(self) -> Draft:
        """Everything without loss."""
        return draft_of(self.sources, self.structure, lambda _: None)

    @functools.cached_property
    def _shortest(self) -> Draft:
        """All levels zero, or everything exact if that is shorter."""
        largest = max((s.largest for s in self.sources), default=0.0)
        one = step_below(min(4 * largest, MOST_STEP.size))
        # A header is mostly shorter where all steps are one.
        choices = (
            self._steps(self._coarsest),
            lambda source: one if source.quantisable else None,
        )
        # One codec will do where all levels are zero, and it is the quick one.
        draft = min(
            (
                draft_of(self.sources, self.structure, steps, codec=_uniform)
                for steps in choices
            ),
            key=_length,
        )
        if self.about_exact_bytes > 2 * draft.length:
            return draft
        return min(draft, self.exact, key=_length)

    def within_bytes(self, limit: int) -> Draft:
        """The file closest below the limit; the shortest there is if all are above."""
        if limit < _TIGHT * sum(s.array.nbytes for s in self.sources):
            shortest = self._shortest
            if shortest.length > limit:
                return shortest
            if shortest.length > limit * (1 - _CLOSE):
                return shortest
        fakes = [source.placeholder() for source in self.sources]
        overhead = len(write(self.structure, fakes))
        room = limit * (1 - _CLOSE / 2) - overhead
        if self._bytes(self._coarsest) > room:
            return self._shortest
        scale = meet(
            self._bytes,
            room,
            self._finest,
            self._coarsest,
            tolerance=limit * _CLOSE / 8,
        )

        def miss(draft: Draft) -> float:
            return (draft.length - limit * (1 - _CLOSE / 2)) / (limit * _CLOSE / 2)

        floats = sum(s.array.size for s in self.sources if s.quantisable) / 8
        return self._refined(
            scale, room, miss, floats / (limit * _CLOSE / 2), lambda: self._shortest
        )

    def within_rel_error(self, target: float) -> Draft:
        """The shortest file whose total error is at most `target` of the total norm."""
        total = math.fsum(source.energy for source in self.sources)

        def log_error(scale: float) -> float:
            found = math.fsum(self._point(s, scale).energy for s in self.sources)
            return math.log2(max(relative(found, total), 2.0**-80))

        if target == 0 or total == 0:
            return self.exact
        goal = math.log2(target) - _CLOSE_ERROR / 2
        scale = meet(
            log_error, goal, self._coarsest, self._finest, tolerance=_CLOSE_ERROR / 4
        )

        def miss(draft: Draft) -> float:
            found = math.log2(max(draft.rel_error, 2.0**-80))
            return (found - goal) / (_CLOSE_ERROR / 2)

        room = self._bytes(scale)
        return self._refined(scale, room, miss, -2 / _CLOSE_ERROR, lambda: self.exact)

    def within_max_abs(self, target: float) -> Draft:
        """The shortest file with no error of any number above `target`."""

        def step(source: Source) -> Step | None:
            # Half a step is the error, but for the rounding of the product and of
            # the dtype: where these matter, a finer step.
            for part in (1.0, 0.999, 0.99, 0.9, 0.75, 0.5, 0.25):
                wanted = step_below(2 * target * part)
                if source.error_at(wanted).largest <= target:
                    return wanted
            return None

        # A trellis errs by up to twice as much as a uniform grid of the same bytes.
        return draft_of(
            self.sources,
            self.structure,
            step,
            codec=_uniform,
            progress=self.progress,
        )

    def least_max_abs(self, limit: int, draft: Draft, *, above: float) -> float | None:
        """About the least largest error in `limit` bytes; None if none was found.

        Args:
            limit: bytes of the file.
            draft: a file that is longer.
            above: its largest error.
        """
        weights = sum(s.array.size for s in self.sources if s.quantisable)
        if not weights:
            return None
        if not above:  # far from any step's length
            above = max(s.rms for s in self.sources) / 256
            draft = self.within_max_abs(above)
        best: float | None = None
        for _ in range(_MOST_FILES):
            # A step twice as large takes about a bit less for each number.
            bits = 8 * (draft.length - 0.99 * limit) / weights
            above *= 2 ** max(-1.0, min(16.0, bits))
            draft = self.within_max_abs(above)
            if draft.length <= limit:
                best = min(draft.max_abs, best or math.inf)
                if draft.length > 0.97 * limit:
                    break
        return best

    def exact_only(self) -> list[Source]:
        """The tensors that no step can shorten, the longest first."""
        steps = self._steps(self._coarsest)
        found = [s for s in self.sources if not s.steppable(steps(s))]
        return sorted(found, key=lambda s: -s.exact_bytes)

    def _refined(
        self,
        scale: float,
        room: float,
        miss: Callable[[Draft], float],
        slope: float,
        fallback: Callable[[], Draft],
    ) -> Draft:
        """Real files at the best choice of options, until one meets the budget.

        Args:
            scale: where all tensors meet it by estimate.
            room: bytes of all tensors at that scale.
            miss: how far a file is from the middle of what is wanted; in [-1, 1] it is
                right, above 1 it breaks the budget.
            slope: of `miss` over a power of two of finer steps; about.
            fallback: what is within the budget if anything is.
        """
        scales, gap = self._allocated(scale, room)
        best: Draft | None = None
        best_miss = -math.inf
        shift = 0.0
        below: tuple[float, float] | None = None
        above: tuple[float, float] | None = None
        for _ in range(_MOST_FILES):

            def steps(source: Source, shift: float = shift) -> Step | None:
                at = scales.get(source.name)
                return None if at is None else self._step(source, at - shift)

            draft = draft_of(
                self.sources,
                self.structure,
                steps,
                gap=gap,
                progress=self.progress,
            )
            found = miss(draft)
            if best_miss < found <= 1:
                best, best_miss = draft, found
            if abs(found) <= 1:
                break
            if found > 0:
                above = shift, found
            else:
                below = shift, found
            if above is not None and below is not None:
                part = -below[1] / (above[1] - below[1])
                next_shift = below[0] + min(0.9, max(0.1, part)) * (above[0] - below[0])
            else:
                next_shift = shift - max(-1.0, min(1.0, found / slope))
            if abs(next_shift - shift) < 2.0**-11:
                break
            shift = next_shift
        return best or fallback()

    def _allocated(self, scale: float, room: float) -> tuple[dict[str, float], float]:
        """The best scale of each tensor within `room` bytes, and the gap to the bound.

        Tensors that are best kept exact have none.
        """
        cost = np.zeros((len(self.sources), len(_OPTIONS) + 1), np.int64)
        loss = np.full(cost.shape, np.inf)
        for row, source in enumerate(self.sources):
            cost[row, -1], loss[row, -1] = math.ceil(source.about_exact_bytes), 0.0
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
        found = best_one_each(cost, loss, limit=limit)
        scales = {
            source.name: scale + _OPTIONS[option]
            for source, option in zip(self.sources, found.chosen, strict=True)
            if option < len(_OPTIONS) and source.quantisable
        }
        return scales, found.gap

    def _bytes(self, scale: float) -> float:
        """About the bytes of all tensors at one scale."""
        self.progress(0.0, "sampling")
        return math.fsum(self._point(s, scale).bytes for s in self.sources)

    def _point(self, source: Source, scale: float) -> Point:
        """The tensor at a scale, between the two notches next to it."""
        notch = math.floor(scale / _NOTCH)
        low, high = (
            source.estimated(self._step(source, _NOTCH * n)) for n in (notch, notch + 1)
        )
        part = scale / _NOTCH - notch
        between = low.bytes + part * (high.bytes - low.bytes)
        if not low.energy:
            return Point(between, part * high.energy)
        # Bytes fall in a straight line, and error grows by a power.
        return Point(between, low.energy * (high.energy / low.energy) ** part)

    def _steps(self, scale: float) -> Steps:
        return lambda source: self._step(source, scale)

    def _step(self, source: Source, scale: float) -> Step | None:
        if not source.quantisable:
            return None
        # A step that makes zeros of everything need not be longer, and must not pass
        # the range of steps: that would be exact.
        most = min(4 * source.largest, MOST_STEP.size)
        step = step_below(min(2.0**scale * self._unit(source), most))
        if step is not None and source.codec_at(step) == "trellis":
            return step_below(TRELLIS_STEP * step.size)
        return step

    def _unit(self, source: Source) -> float:
        return 1 / math.sqrt(self.weights[source.name])

    @functools.cached_property
    def _coarsest(self) -> float:
        """Where every level is zero: a quarter step is the largest number."""
        ratios = [4 * s.largest / self._unit(s) for s in self.sources if s.quantisable]
        return math.log2(max(ratios, default=1.0))

    @functools.cached_property
    def _finest(self) -> float:
        """Where levels are too large for the codec, so that tensors come out exact."""
        wide = any(source.array.dtype.itemsize == 8 for source in self.sources)
        ratios = [s.rms / self._unit(s) for s in self.sources if s.quantisable]
        return math.log2(min(ratios, default=1.0)) - (54 if wide else 26)


def _uniform(_: Source) -> str:
    return "quantised"


def _length(draft: Draft) -> int:
    return draft.length
