"""Choose codec and quantisation step of each tensor within a size or error budget.

The objective is the sum over tensors of squared error times a weight, which `_measure`
chooses.

1. A common scale that meets the budget by estimate is found.
2. Each tensor gets options around it, with bytes and error from real samples, and the
   best choice of one option each is found exactly (a multiple-choice knapsack,
   `frugax.allocate.multiple_choice_knapsack`).
3. The whole is coded, and all steps are scaled by one fine factor until the file
   itself is right.

When the budget is a largest error, all steps are twice that error.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

from frugax.budget import SizeBudget

from .._rounded_before import refuse_rounded
from ..arrays import relative_error, round_up
from ..codecs import MAX_STEP, Form, Step, step_below
from ..container import write
from ._draft import Draft, Steps, limit_bytes
from ._encode import placeholder
from ._infeasible import raise_infeasible
from ._measure import choose_weights
from ._sample import RatePoint
from ._scales import ScaleModel
from ._source import UNIFORM, Source
from ._work import Work

# The file should be within this share of the limit; searching goes on until it is.
_CLOSE = 0.005
_CLOSE_ERROR = 0.007  # in powers of two: 0.5% below the error allowed
# Outputs change by more than that from one rounding to the next.
_CLOSE_OUTPUT = 0.07
_MAX_FILES = 8
# The shares of the remaining progress that a sampling and a draft take.
_SAMPLING, _DRAFT = 0.03, 0.5
# Below this share of the original bytes it may be that no file is short enough.
_TIGHT = 0.05


def choose(work: Work, budget: SizeBudget) -> Draft:
    """Find the file within the budget of the least error, or of the fewest bytes."""
    if budget.output_error is not None and work.calibration is None:
        raise ValueError(
            f"{budget}: outputs need a model. Give plan, compress or save the "
            "sensitivity= from frugax.compress.calibrate(apply_fn, params, batches)."
        )
    if 0 not in (budget.max_abs, budget.rel_error):
        refuse_rounded((s.name, s.array.dtype.name, s.array.ndim) for s in work.sources)
    # Scales of rows cost total error, which they are not for where that is limited.
    size_alone = budget.rel_error is None and budget.max_abs is None
    sources, weights = choose_weights(
        work.sources, work.sensitivity, scale_tables=size_alone
    )
    work = dataclasses.replace(work, sources=sources)
    scales = ScaleModel(sources, weights)
    return Search(work, scales).meet(budget)


@dataclasses.dataclass(frozen=True)
class Search:
    """The search for one tree.

    Attributes:
        work: the tree, its tensors with their scales.
        scales: rate-distortion estimates of the same tensors.
    """

    work: Work
    scales: ScaleModel

    @property
    def sources(self) -> tuple[Source, ...]:
        """The tensors."""
        return self.work.sources

    def meet(self, budget: SizeBudget) -> Draft:
        """Return the file of a budget, or raise what `choose` documents."""
        limit = limit_bytes(self.sources, budget)
        in_size = None
        draft = self._find(budget, limit)
        if limit is None or draft.length <= limit:
            return draft
        if self._steps_matter and not budget.is_only_size:
            # The best allocation in a size and the shortest file within an error are
            # two searches: one may find a file that the other misses by a little.
            in_size = self.fit_bytes(limit)
            if in_size.length <= limit and self._meets_error(in_size, budget):
                return in_size
        raise_infeasible(
            draft,
            limit,
            budget,
            in_size,
            exact_only=self.list_exact_only(),
            measure_outputs=self.output_error,
            find_least_max_abs=lambda: self.min_max_abs(limit, draft, budget),
        )

    def _meets_error(self, draft: Draft, budget: SizeBudget) -> bool:
        if budget.output_error is not None:
            return self.output_error(draft) <= budget.output_error
        return all(
            limit is None or error <= limit
            for error, limit in (
                (draft.rel_error, budget.rel_error),
                (draft.max_abs, budget.max_abs),
            )
        )

    def output_error(self, draft: Draft) -> float:
        """Return the largest relative error of the outputs on any batches there are."""
        assert self.work.calibration is not None  # `choose` asks for one
        return self.work.calibration.measure(draft.arrays())

    def _find(self, budget: SizeBudget, limit: int | None) -> Draft:
        """Find a file by the error of a budget, or else by its size."""
        if budget.max_abs is not None:
            # Also where no step is fine enough to keep anything: zeros may be allowed.
            draft = self.fit_max_abs(budget.max_abs)
        elif not self._steps_matter:
            return self.exact
        elif budget.rel_error is not None:
            draft = self.fit_rel_error(budget.rel_error)
        elif budget.output_error is not None:
            draft = self.fit_output_error(budget.output_error)
        else:
            assert limit is not None  # a budget has a size or an error
            # This leaves out the header. It comes first, because `exact` codes a whole
            # file, which most budgets have no room for.
            if not self._exact_exceeds(limit) and self.exact.length <= limit:
                return self.exact
            draft = self.fit_bytes(limit)
        # The savings of quantising a few weights may be less than its header bytes.
        stepped = any(t.step for t in draft.tensors)
        if stepped and not self._exact_exceeds(draft.length - 1):
            draft = min(self.exact, draft, key=_length)
        return draft

    @property
    def _steps_matter(self) -> bool:
        """Whether any tensor can be quantised; else one file is all there is."""
        return any(source.quantisable for source in self.sources)

    def _exact_exceeds(self, limit: int) -> bool:
        """Whether everything without loss and header is longer than a limit."""
        for source in self.sources:
            if source.exact.exceeds(limit):
                return True
            limit -= source.exact.bytes
        return False

    @functools.cached_property
    def exact(self) -> Draft:
        """The file of everything without loss."""
        return self._draft(lambda _: None)

    @functools.cached_property
    def _shortest(self) -> Draft:
        """The file with all levels zero, or everything exact if that is shorter."""
        largest = max((s.max_abs for s in self.sources), default=0.0)
        one = step_below(min(4 * largest, MAX_STEP.size))
        # A header is mostly shorter where all steps are one.
        choices: tuple[Steps, ...] = (
            self.scales.steps_at(self.scales.coarsest),
            lambda source: one if source.quantisable else None,
        )
        # Where all levels are zero any form will do, and the uniform one is fastest.
        draft = min(
            (self.work.draft(steps, form=lambda _: UNIFORM) for steps in choices),
            key=_length,
        )
        if self._exact_exceeds(draft.length):
            return draft
        return min(draft, self.exact, key=_length)

    def fit_bytes(self, limit: int) -> Draft:
        """Find the file closest below the limit; the shortest one if all are above."""
        tight = limit < _TIGHT * sum(s.array.nbytes for s in self.sources)
        if tight and self._shortest.length > limit * (1 - _CLOSE):
            return self._shortest
        # With a step too fine for its integers a tensor is exact, which a size need not
        # have room for.
        scales = dataclasses.replace(self.scales, capped=True)
        return dataclasses.replace(self, scales=scales)._fit_bytes_capped(
            limit, lambda: self._shortest
        )

    def _fit_bytes_capped(self, limit: int, shortest: Callable[[], Draft]) -> Draft:
        # The header is compressed too, so its length is measured, not added up.
        placeholders = [*map(placeholder, self.sources)]
        overhead = len(write(self.work.head, placeholders))
        # The middle of the accepted range: real files land on both sides of an
        # estimate.
        room = limit * (1 - _CLOSE / 2) - overhead
        # A step half as large takes one bit more for each number.
        slope_bytes = sum(s.array.size for s in self.sources if s.quantisable) / 8
        scale = self.scales.find(
            lambda scale: (room - self._total(scale).bytes) / slope_bytes
        )
        if scale == self.scales.coarsest and self._total(scale).bytes > room:
            return shortest()

        def miss(draft: Draft) -> float:
            return (draft.length - limit * (1 - _CLOSE / 2)) / (limit * _CLOSE / 2)

        return self._refine(
            scale,
            room,
            miss,
            slope_bytes / (limit * _CLOSE / 2),
            lambda: self._uniform_fallback(scale, limit, shortest()),
            spare=limit * _CLOSE / 4,
        )

    def _uniform_fallback(self, scale: float, limit: int, shortest: Draft) -> Draft:
        """Find the longest file below the limit with all tensors at one scale.

        For where no scaling of the best allocation fits: estimates can be wrong about
        it, or it is exact at any scale.
        """
        best, at, low, high = shortest, scale, scale, self.scales.coarsest
        for _ in range(_MAX_FILES):
            if best.length > limit * (1 - _CLOSE):
                break
            draft = self._draft(self.scales.steps_at(at))
            if draft.length <= limit:
                best, high = max(best, draft, key=_length), at
            else:
                low = at
            at = (low + high) / 2
        return best

    def fit_rel_error(self, target: float) -> Draft:
        """Find the shortest file within a relative error over all tensors."""
        total = math.fsum(source.energy for source in self.sources)
        return self._fit_error(
            target,
            estimate=lambda scale: relative_error(self._total(scale).energy, total),
            measure=lambda draft: draft.rel_error,
            close=_CLOSE_ERROR,
        )

    def fit_output_error(self, target: float) -> Draft:
        """Find the shortest file within a relative error of a model's outputs."""
        calibration = self.work.calibration
        if calibration is None or not calibration.energy:
            return self.exact
        return self._fit_error(
            target,
            # To first order: weighted squared errors of weights are those of outputs.
            estimate=lambda scale: math.sqrt(
                self._total(scale).loss / calibration.energy
            ),
            measure=self.output_error,
            close=_CLOSE_OUTPUT,
        )

    def _fit_error(
        self,
        target: float,
        *,
        estimate: Callable[[float], float],
        measure: Callable[[Draft], float],
        close: float,
    ) -> Draft:
        """Find the shortest file within an error, estimated by scale and measured."""
        if target == 0:
            return self.exact
        goal = math.log2(target) - close / 2
        # In powers of two the error is nearly linear in the scale. The floor stands in
        # for the logarithm of an exact file.
        logarithm = lambda error: math.log2(max(error, 2.0**-80))
        # A step twice as large makes twice the error.
        scale = self.scales.find(lambda scale: logarithm(estimate(scale)) - goal)

        def miss(draft: Draft) -> float:
            error = measure(draft)
            if math.isnan(error):  # outputs that overflow are not an answer
                return math.inf
            return (logarithm(error) - goal) / (close / 2)

        room = self._total(scale).bytes
        return self._refine(scale, room, miss, -2 / close, lambda: self.exact)

    def fit_max_abs(self, target: float) -> Draft:
        """Find the shortest file with no error of any number above `target`."""

        def step(source: Source) -> Step | None:
            # Half a step is the error, apart from the rounding of the product and of
            # the dtype: where these matter, a finer step.
            for part in (1.0, 0.999, 0.99, 0.9, 0.75, 0.5, 0.25):
                candidate = step_below(min(2 * target * part, MAX_STEP.size))
                if source.uniform_distortion(candidate).max_abs <= target:
                    return candidate
            return None

        # A trellis errs by up to twice as much as a uniform grid of the same bytes.
        return self._draft(step, form=lambda _: UNIFORM)

    def min_max_abs(self, limit: int, draft: Draft, budget: SizeBudget) -> float | None:
        """Find about the least largest error in `limit` bytes; None if none fits."""
        above = budget.max_abs
        weights = sum(s.array.size for s in self.sources if s.quantisable)
        if above is None or not weights:
            return None
        if not above:  # an exact file says nothing about steps
            above = max(s.rms for s in self.sources) / 256
            draft = self.fit_max_abs(above)
        best: float | None = None
        for _ in range(_MAX_FILES):
            # A step twice as large takes up to one bit less for each number.
            bits = 8 * (draft.length - 0.99 * limit) / weights
            above = round_up(above * 2 ** max(-1.0, min(16.0, bits)))
            draft = self.fit_max_abs(above)
            if draft.length <= limit:
                best = min(above, best or math.inf)
                if draft.length > 0.97 * limit:
                    break
        return best

    def list_exact_only(self) -> list[Source]:
        """Return the tensors that no step can shorten, the longest first."""
        steps = self.scales.steps_at(self.scales.coarsest)
        exact = [s for s in self.sources if not s.is_quantisable_at(steps(s))]
        return sorted(exact, key=lambda s: -s.exact.bytes)

    def _total(self, scale: float) -> RatePoint:
        self.work.progress.stage(_SAMPLING)(1.0, "sampling")
        return self.scales.total(scale)

    def _draft(
        self,
        steps: Steps,
        *,
        form: Callable[[Source], Form | None] = lambda _: None,
        gap: float | None = None,
    ) -> Draft:
        progress = self.work.progress.stage(_DRAFT)
        return self.work.draft(steps, form=form, gap=gap, progress=progress)

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
        """Code real files around the best allocation until one meets the budget."""
        # `miss` is the distance of a file from the middle of the wanted range: in
        # [-1, 1] it is right, above 1 it breaks the budget. `slope` is that of `miss`
        # over a power of two of finer steps, about.
        scales, gap = self.scales.allocate(scale, room, spare)
        best: Draft | None = None
        best_miss = -math.inf
        shift = 0.0
        below: tuple[float, float] | None = None
        above: tuple[float, float] | None = None
        previous: list[Step | None] | None = None
        last: tuple[float, float] | None = None
        for _ in range(_MAX_FILES):

            def steps(source: Source, shift: float = shift) -> Step | None:
                at = scales.get(source.name)
                return None if at is None else self.scales.step_at(source, at - shift)

            chosen = [steps(source) for source in self.sources]
            if chosen == previous:  # the finest or the coarsest that there are
                break
            previous = chosen
            draft = self._draft(steps, gap=gap)
            missed = miss(draft)
            # `miss` grows with the share of the budget that is used: of the files
            # within it, the fullest is the most exact or the shortest.
            if best_miss < missed <= 1:
                best, best_miss = draft, missed
            if abs(missed) <= 1:
                break
            if last is not None:  # as steep as between the last two files, about
                rise = (missed - last[1]) / (shift - last[0]) / slope
                slope *= min(2.0, max(0.25, rise))
            last = shift, missed
            if missed > 0:
                above = shift, missed
            else:
                below = shift, missed
            if above is not None and below is not None:
                # Regula falsi, kept off the ends of the bracket.
                part = -below[1] / (above[1] - below[1])
                next_shift = below[0] + min(0.9, max(0.1, part)) * (above[0] - below[0])
            else:
                next_shift = shift - max(-1.0, min(1.0, missed / slope))
            if abs(next_shift - shift) < 2.0**-11:  # finer than the mantissa of a step
                break
            shift = next_shift
        return best or fallback()


def _length(draft: Draft) -> int:
    return draft.length
