"""The search for the steps of one tree: by estimate first, then by real files."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from .._arguments import ProgressStages
from ..arrays._error import relative_error, round_up
from ..codecs._uniform import MOST_STEP, Step, step_below
from ..container._writer import write
from ._draft import Draft, make_draft
from ._scales import ScaleModel
from ._source import Source

# The file should be within this share of the limit; searching goes on until it is.
_CLOSE = 0.005
_CLOSE_ERROR = 0.007  # in powers of two: 0.5% below the error allowed
_MOST_FILES = 8
# What a sampling and a draft take of the progress that is left.
_SAMPLING, _DRAFT = 0.03, 0.5
# Below this share of the original bytes it may be that no file is short enough.
_TIGHT = 0.05


@dataclasses.dataclass(frozen=True)
class StepSearch:
    """The search for one tree.

    Attributes:
        sources: the tensors.
        head: what the header says beside the tensors, such as `structure`.
        scales: the same tensors, all at one scale, by estimate.
        progress: told of what is being done.
    """

    sources: tuple[Source, ...]
    head: Mapping[str, Any]
    scales: ScaleModel
    progress: ProgressStages

    @functools.cached_property
    def exact_bytes(self) -> int:
        """Bytes of everything without loss, but for the header."""
        return sum(source.exact_bytes for source in self.sources)

    @functools.cached_property
    def exact(self) -> Draft:
        """Everything without loss."""
        return make_draft(
            self.sources,
            self.head,
            lambda _: None,
            progress=self.progress.next(_DRAFT),
        )

    @functools.cached_property
    def _shortest(self) -> Draft:
        """All levels zero, or everything exact if that is shorter."""
        largest = max((s.max_abs for s in self.sources), default=0.0)
        one = step_below(min(4 * largest, MOST_STEP.size))
        # A header is mostly shorter where all steps are one.
        choices = (
            self.scales.steps(self.scales.coarsest),
            lambda source: one if source.quantisable else None,
        )
        # One codec will do where all levels are zero, and it is the quick one.
        draft = min(
            (
                make_draft(self.sources, self.head, steps, codec=_uniform)
                for steps in choices
            ),
            key=_length,
        )
        if self.exact_bytes > draft.length:
            return draft
        return min(draft, self.exact, key=_length)

    def fit_bytes(self, limit: int) -> Draft:
        """The file closest below the limit; the shortest there is if all are above."""
        if limit < _TIGHT * sum(s.array.nbytes for s in self.sources):
            shortest = self._shortest
            if shortest.length > limit:
                return shortest
            if shortest.length > limit * (1 - _CLOSE):
                return shortest
        search = dataclasses.replace(
            self, scales=dataclasses.replace(self.scales, capped=True)
        )
        return search._below(limit, lambda: self._shortest)

    def _below(self, limit: int, shortest: Callable[[], Draft]) -> Draft:
        """The file closest below the limit; the shortest one where none is found."""
        fakes = [source.placeholder() for source in self.sources]
        overhead = len(write(self.head, fakes))
        room = limit * (1 - _CLOSE / 2) - overhead
        if self._bytes_at(self.scales.coarsest) > room:
            return shortest()
        scale = meet(
            self._bytes_at,
            room,
            self.scales.finest,
            self.scales.coarsest,
            tolerance=limit * _CLOSE / 8,
        )

        def miss(draft: Draft) -> float:
            return (draft.length - limit * (1 - _CLOSE / 2)) / (limit * _CLOSE / 2)

        floats = sum(s.array.size for s in self.sources if s.quantisable) / 8
        return self._refine(
            scale,
            room,
            miss,
            floats / (limit * _CLOSE / 2),
            lambda: self._uniform_fallback(scale, limit, shortest()),
            spare=limit * _CLOSE / 4,
        )

    def _uniform_fallback(self, scale: float, limit: int, shortest: Draft) -> Draft:
        """The longest file found below the limit with all tensors at one scale.

        For where no scaling of the best choice fits, which estimates can be wrong about
        or which is exact whatever the scale.

        Args:
            scale: about what is wanted.
            limit: bytes of the file.
            shortest: what there is at least, perhaps too long.
        """
        best, at, low, high = shortest, scale, scale, self.scales.coarsest
        for _ in range(_MOST_FILES):
            if best.length > limit or best.length > limit * (1 - _CLOSE):
                break
            draft = make_draft(
                self.sources,
                self.head,
                self.scales.steps(at),
                progress=self.progress.next(_DRAFT),
            )
            if draft.length <= limit:
                best, high = max(best, draft, key=_length), at
            else:
                low = at
            at = (low + high) / 2
        return best

    def fit_rel_error(self, target: float) -> Draft:
        """The shortest file whose total error is at most `target` of the total norm."""
        total = math.fsum(source.energy for source in self.sources)

        def log_error(scale: float) -> float:
            self.progress.next(_SAMPLING)(1.0, "sampling")
            found = self.scales.total_energy(scale)
            return math.log2(max(relative_error(found, total), 2.0**-80))

        if target == 0 or not any(source.quantisable for source in self.sources):
            return self.exact
        goal = math.log2(target) - _CLOSE_ERROR / 2
        scale = meet(
            log_error,
            goal,
            self.scales.coarsest,
            self.scales.finest,
            tolerance=_CLOSE_ERROR,
        )

        def miss(draft: Draft) -> float:
            found = math.log2(max(draft.rel_error, 2.0**-80))
            return (found - goal) / (_CLOSE_ERROR / 2)

        room = self._bytes_at(scale)
        return self._refine(scale, room, miss, -2 / _CLOSE_ERROR, lambda: self.exact)

    def fit_max_abs(self, target: float) -> Draft:
        """The shortest file with no error of any number above `target`."""

        def step(source: Source) -> Step | None:
            # Half a step is the error, but for the rounding of the product and of
            # the dtype: where these matter, a finer step.
            for part in (1.0, 0.999, 0.99, 0.9, 0.75, 0.5, 0.25):
                wanted = step_below(min(2 * target * part, MOST_STEP.size))
                if source.uniform_distortion(wanted).max_abs <= target:
                    return wanted
            return None

        # A trellis errs by up to twice as much as a uniform grid of the same bytes.
        return make_draft(
            self.sources,
            self.head,
            step,
            codec=_uniform,
            progress=self.progress.next(_DRAFT),
        )

    def min_max_abs(self, limit: int, draft: Draft, *, above: float) -> float | None:
        """About the least largest error in `limit` bytes; None if none was found.

        It is one that `fit_max_abs` gives such a file for, not that of the file.

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
            draft = self.fit_max_abs(above)
        best: float | None = None
        for _ in range(_MOST_FILES):
            # A step twice as large takes about a bit less for each number.
            bits = 8 * (draft.length - 0.99 * limit) / weights
            above = round_up(above * 2 ** max(-1.0, min(16.0, bits)))
            draft = self.fit_max_abs(above)
            if draft.length <= limit:
                best = min(above, best or math.inf)
                if draft.length > 0.97 * limit:
                    break
        return best

    def list_exact_only(self) -> list[Source]:
        """The tensors that no step can shorten, the longest first."""
        steps = self.scales.steps(self.scales.coarsest)
        found = [s for s in self.sources if not s.is_quantisable_at(steps(s))]
        return sorted(found, key=lambda s: -s.exact_bytes)

    def _bytes_at(self, scale: float) -> float:
        self.progress.next(_SAMPLING)(1.0, "sampling")
        return self.scales.total_bytes(scale)

    def _refine(
        self,
        scale: float,
        room: float,
        miss: Callable[[Draft], float],
        slope: float,
        fallback: Callable[[], Draft],
        *,
        spare: float = 0.0,
    ) -> Draft:
        """Real files at the best choice of options, until one meets the budget.

        Args:
            scale: where all tensors meet it by estimate.
            room: bytes of all tensors at that scale.
            miss: how far a file is from the middle of what is wanted; in [-1, 1] it is
                right, above 1 it breaks the budget.
            slope: of `miss` over a power of two of finer steps; about.
            fallback: what is within the budget if anything is.
            spare: bytes more, for tensors that so become exact.
        """
        scales, gap = self.scales.allocate(scale, room, spare)
        best: Draft | None = None
        best_miss = -math.inf
        shift = 0.0
        below: tuple[float, float] | None = None
        above: tuple[float, float] | None = None
        before: list[Step | None] | None = None
        for _ in range(_MOST_FILES):

            def steps(source: Source, shift: float = shift) -> Step | None:
                at = scales.get(source.name)
                return None if at is None else self.scales.step(source, at - shift)

            chosen = [steps(source) for source in self.sources]
            if chosen == before:  # the finest or the coarsest that there are
                break
            before = chosen
            draft = make_draft(
                self.sources,
                self.head,
                steps,
                gap=gap,
                progress=self.progress.next(_DRAFT),
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


def _uniform(_: Source) -> str:
    return "quantised"


def _length(draft: Draft) -> int:
    return draft.length


def meet(
    function: Callable[[float], float],
    target: float,
    low: float,
    high: float,
    *,
    tolerance: float,
    most: int = 24,
) -> float:
    """Find `x` with `function(x)` at most `target` and, if it can be, close to it.

    Args:
        function: decreasing, or nearly so.
        target: the value to meet from below.
        low: where the function is above the target.
        high: where it is at or below the target.
        tolerance: how far below the target is close enough, in the function's unit.
        most: most evaluations.

    Returns:
        The best point seen, or `high` if none was at or below the target.
    """
    best, best_value = high, -float("inf")
    at_low, at_high = function(low) - target, function(high) - target
    if at_low <= 0:
        return low
    previous = 0
    for _ in range(most):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        inside = min(low, high) < middle < max(low, high)
        middle = middle if inside else (low + high) / 2
        gap = function(middle) - target
        if gap > 0:
            low, at_low = middle, gap
            at_high = at_high / 2 if previous == 1 else at_high
            previous = 1
        else:
            if gap > best_value:
                best, best_value = middle, gap
            high, at_high = middle, gap
            at_low = at_low / 2 if previous == -1 else at_low
            previous = -1
        if -tolerance <= gap <= 0 or abs(high - low) < 1e-5:
            break
    return best
