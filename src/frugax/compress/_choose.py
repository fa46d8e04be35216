"""From a budget to the step of each tensor: the search, on real files.

Every tensor's step is one factor times the geometric mean of the tensor's own size
(root mean square) and that of all weights together. One global step would make the
least total error, and silence tensors whose weights are small; steps as large as the
tensors themselves spend 3 dB on protecting them (measured on trained residual
networks of 6 to 14 times smaller files; half way costs 0.9 dB). When the budget is a
largest error, all steps are twice that error.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from frugax.budget import SizeBudget
from frugax.errors import InfeasibleBudgetError

from ._container import Encoded
from ._error import relative
from ._quantised import Step, step_below
from ._search import meet
from ._sources import Source
from ._writer import write

# Small tensors stay exact while they take at most this share of the file: they weigh
# little and errs much. Beyond it, everything else would pay for them.
_SMALL_SHARE = 1 / 8
# The file should be within this share of the limit; searching goes on until it is.
_CLOSE = 0.005
_CLOSE_ERROR = 0.01  # in powers of two: 0.7% below the error allowed
_MOST_FILES = 8

# Which step to quantise a tensor with; None to keep it exact.
Steps = Callable[[Source], Step | None]


@dataclasses.dataclass(frozen=True)
class Draft:
    """A whole file, and what it was made from.

    Attributes:
        data: the bytes of the file.
        tensors: each tensor as it stands in it.
        sources: each tensor as it was.
    """

    data: bytes
    tensors: tuple[Encoded, ...]
    sources: tuple[Source, ...]

    @property
    def rel_error(self) -> float:
        """||decoded - original|| / ||original|| over all finite float tensors."""
        error = math.fsum(tensor.error.energy for tensor in self.tensors)
        return relative(error, math.fsum(s.energy for s in self.sources))

    @property
    def max_abs(self) -> float:
        """Largest |decoded - original| of any number."""
        return max((tensor.error.largest for tensor in self.tensors), default=0.0)

    @property
    def small_bytes(self) -> int:
        """Bytes that the small float tensors take, without their headers."""
        pairs = zip(self.sources, self.tensors, strict=True)
        return sum(len(b) for s, t in pairs if s.small and s.energy for b in t.blocks)


def limit_of(sources: Sequence[Source], budget: SizeBudget) -> int | None:
    """The longest file that the budget allows for these tensors; None if any."""
    return budget.limit_bytes(
        original_bytes=sum(s.array.nbytes for s in sources),
        weights=sum(s.array.size for s in sources),
    )


def draft_of(sources: tuple[Source, ...], structure: Any, steps: Steps) -> Draft:
    """The file that these steps make."""
    tensors = tuple(source.encoded(steps(source)) for source in sources)
    return Draft(write(structure, tensors), tensors, sources)


def choose(sources: tuple[Source, ...], structure: Any, budget: SizeBudget) -> Draft:
    """Find the file that meets the budget with the least error, or with fewest bytes.

    Raises:
        InfeasibleBudgetError: no file is as short as asked, or none within the error.
    """
    search = _Search(sources, structure)
    limit = limit_of(sources, budget)
    only_size = budget.rel_error is None and budget.max_abs is None
    exact = search.draft(lambda _: None)
    if only_size and limit is not None and len(exact.data) <= limit:
        return exact
    drafts = [exact]
    for spare in (True, False):
        if budget.max_abs is not None:
            draft = search.within_max_abs(budget.max_abs, spare=spare)
        elif budget.rel_error is not None:
            draft = search.within_rel_error(budget.rel_error, spare=spare)
        else:
            assert limit is not None  # a budget has a size or an error
            draft = search.within_bytes(limit, spare=spare)
        fits = limit is None or len(draft.data) <= limit
        if fits and draft.small_bytes <= _SMALL_SHARE * len(draft.data):
            return min(draft, exact, key=_length) if not only_size else draft
        drafts.append(draft)
    fitting = [d for d in drafts if limit is None or len(d.data) <= limit]
    if fitting:
        return fitting[-1] if only_size else min(fitting, key=_length)
    assert limit is not None  # without a limit everything fits
    needed = min(map(_length, drafts))
    raise InfeasibleBudgetError(
        "the smallest file of these weights"
        + ("" if only_size else " within the error"),
        needed=needed,
        limit=limit,
        unit="bytes",
        hint=_hint(search.exact_only(), needed, limit, only_size=only_size),
    )


def _hint(
    exact_only: Sequence[Source], needed: int, limit: int, *, only_size: bool
) -> str:
    """What would help besides more bytes; names the tensors that are in the way."""
    if not only_size and sum(source.exact_bytes for source in exact_only) < limit:
        return "allow a larger error."
    named: list[str] = []
    for s in exact_only:
        if needed <= limit:
            break
        needed -= s.exact_bytes
        place = s.name or "(the array)"
        named.append(f"{place!r} ({s.array.dtype.name}, {s.exact_bytes:,} bytes)")
    if needed > limit:  # the rest is too long as well
        return "compress fewer weights."
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return (
        "convert or take out what can only be stored exactly (docs/compress.md says "
        f"what): {', '.join(named[:3])}{more}."
    )


@dataclasses.dataclass(frozen=True)
class _Search:
    """The search for one tree. `spare` says to keep the small tensors exact.

    Everywhere `scale` is the binary logarithm of step / `_unit(source)`.
    """

    sources: tuple[Source, ...]
    structure: Any

    def draft(self, steps: Steps) -> Draft:
        return draft_of(self.sources, self.structure, steps)

    def within_bytes(self, limit: int, *, spare: bool) -> Draft:
        """The file closest below the limit; the shortest there is if all are above."""
        best = self.draft(self._steps(self._coarsest, spare=spare))
        if len(best.data) > limit:
            return best
        blocks = sum(len(b) for t in best.tensors for b in t.blocks)
        overhead = len(best.data) - blocks

        def estimate(scale: float) -> float:
            steps = self._steps(scale, spare=spare)
            return overhead + sum(s.estimated_bytes(steps(s)) for s in self.sources)

        middle = limit * (1 - _CLOSE / 2)
        aim = middle
        for _ in range(_MOST_FILES):
            scale = meet(
                estimate,
                aim,
                self._finest,
                self._coarsest,
                tolerance=limit * _CLOSE / 4,
            )
            draft = self.draft(self._steps(scale, spare=spare))
            length = len(draft.data)
            if len(best.data) < length <= limit:
                best = draft
            if limit * (1 - _CLOSE) <= length <= limit:
                break
            aim += middle - length
        return best

    def within_rel_error(self, target: float, *, spare: bool) -> Draft:
        """The shortest file whose total error is at most `target` of the total norm."""
        total = math.fsum(source.energy for source in self.sources)

        def log_error(scale: float) -> float:
            steps = self._steps(scale, spare=spare)
            found = math.fsum(s.error_at(steps(s)).energy for s in self.sources)
            return math.log2(max(relative(found, total), 2.0**-80))

        if target == 0 or total == 0:
            return self.draft(lambda _: None)
        goal = math.log2(target)
        scale = meet(
            log_error, goal, self._coarsest, self._finest, tolerance=_CLOSE_ERROR
        )
        return self.draft(self._steps(scale, spare=spare))

    def within_max_abs(self, target: float, *, spare: bool) -> Draft:
        """The shortest file with no error of any number above `target`."""

        def step(source: Source) -> Step | None:
            if spare and source.small:
                return None
            # Half a step is the error, but for the rounding of the product and of
            # the dtype: where these matter, a finer step.
            for part in (1.0, 0.999, 0.99, 0.9, 0.75, 0.5, 0.25):
                wanted = step_below(2 * target * part)
                if source.error_at(wanted).largest <= target:
                    return wanted
            return None

        return self.draft(step)

    def exact_only(self) -> list[Source]:
        """The tensors that no step can shorten, the longest first."""
        steps = self._steps(self._coarsest, spare=False)
        found = [s for s in self.sources if s.levels(steps(s)) is None]
        return sorted(found, key=lambda s: -s.exact_bytes)

    def _steps(self, scale: float, *, spare: bool) -> Steps:
        def step(source: Source) -> Step | None:
            if not source.energy or (spare and source.small):
                return None
            return step_below(2.0**scale * self._unit(source))

        return step

    def _unit(self, source: Source) -> float:
        return math.sqrt(source.rms * self._pooled_rms)

    @functools.cached_property
    def _pooled_rms(self) -> float:
        floats = [source for source in self.sources if source.energy]
        energy = math.fsum(source.energy for source in floats)
        return math.sqrt(energy / max(1, sum(source.array.size for source in floats)))

    @functools.cached_property
    def _coarsest(self) -> float:
        """Where every level is zero: a quarter step is the largest number."""
        ratios = [4 * s.largest / self._unit(s) for s in self.sources if s.energy]
        return math.log2(max(ratios, default=1.0))

    @functools.cached_property
    def _finest(self) -> float:
        """Where levels are too large for the codec, so that tensors come out exact."""
        wide = any(source.array.dtype.itemsize == 8 for source in self.sources)
        ratios = [s.rms / self._unit(s) for s in self.sources if s.energy]
        return math.log2(min(ratios, default=1.0)) - (54 if wide else 26)


def _length(draft: Draft) -> int:
    return len(draft.data)
