"""From a budget to the step of each tensor: options, the best of them, real files.

What is made small is the sum over tensors of squared error times a weight. A tensor's
weight is, by default, 1 over its size (root mean square): plain squared error would
silence tensors whose weights are small, and relative error spends 3 dB on protecting
them (measured on trained residual networks of 6 to 14 times smaller files; half way
costs 0.9 dB). It is so within a factor of 16 of the common size; beyond it relative
error counts, so that no tensor is lost while others are fine. Where the error is all
that counts, equal slopes give each tensor a step of one factor times 1/sqrt(weight),
its *unit*; that is where the search begins.

1. A factor that meets the budget by estimate is found.
2. Each tensor gets options around it, with bytes and error from real samples, and the
   best choice of one option each is found exactly (`frugax.allocate.best_one_each`).
3. The whole is coded, and all steps are scaled by one fine factor until the file
   itself is right.

When the budget is a largest error, all steps are twice that error.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frugax.allocate import best_one_each
from frugax.budget import SizeBudget
from frugax.errors import InfeasibleBudgetError

from ._coding import Wanted, encode_all
from ._container import Encoded
from ._error import relative
from ._estimate import Point
from ._quantised import MOST_STEP, Step, step_below
from ._search import meet
from ._sources import TRELLIS_STEP, Source
from ._writer import write

# Biases and norms weigh little and err much: they get 30 dB more than matrices.
_SMALL_SHARE = 1 / 32
# Sizes this many times the median one, or smaller by it, are where relative error
# begins to count alone: it is then at most this, rooted, from the median tensor's.
_ALIKE = 16
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

# Which step to quantise a tensor with; None to keep it exact.
Steps = Callable[[Source], Step | None]
# Called with the share that is done, in [0, 1], and what is being done.
Progress = Callable[[float, str], None]


@dataclasses.dataclass(frozen=True)
class Draft:
    """A whole file, and what it was made from.

    Attributes:
        data: the bytes of the file.
        tensors: each tensor as it stands in it.
        sources: each tensor as it was.
        gap: by how much of it the weighted error is, by estimate, at most above the
            least that any choice of the same options has; None where steps were not
            chosen one by one.
    """

    data: bytes
    tensors: tuple[Encoded, ...]
    sources: tuple[Source, ...]
    gap: float | None = None

    @property
    def rel_error(self) -> float:
        """||decoded - original|| / ||original|| over all finite float tensors."""
        error = math.fsum(tensor.error.energy for tensor in self.tensors)
        return relative(error, math.fsum(s.energy for s in self.sources))

    @property
    def max_abs(self) -> float:
        """Largest |decoded - original| of any number."""
        return max((tensor.error.largest for tensor in self.tensors), default=0.0)


def limit_of(sources: Sequence[Source], budget: SizeBudget) -> int | None:
    """The longest file that the budget allows for these tensors; None if any."""
    return budget.limit_bytes(
        original_bytes=sum(s.array.nbytes for s in sources),
        weights=sum(s.array.size for s in sources),
    )


def draft_of(
    sources: tuple[Source, ...],
    structure: Any,
    steps: Steps,
    *,
    codec: Callable[[Source], str] | None = None,
    gap: float | None = None,
    progress: Progress | None = None,
) -> Draft:
    """The file that these steps make, with the codecs that suit if none are named."""
    total = max(1, sum(source.array.nbytes for source in sources))
    tensors: list[Encoded] = []
    done = 0
    coded = encode_all(
        [Wanted(s, steps(s), None if codec is None else codec(s)) for s in sources]
    )
    for source in sources:
        if progress is not None:
            progress(done / total, f"coding {source.name or 'the array'}")
        tensors.append(next(coded))
        done += source.array.nbytes
    return Draft(write(structure, tensors), tuple(tensors), sources, gap)


def choose(
    sources: tuple[Source, ...],
    structure: Any,
    budget: SizeBudget,
    *,
    sensitivity: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Draft:
    """Find the file that meets the budget with the least error, or with fewest bytes.

    Raises:
        InfeasibleBudgetError: no file is as short as asked, or none within the error.
        ValueError: the sensitivity names no tensor, or is negative.
    """
    weights = _weights(sources, sensitivity)
    search = _Search(sources, structure, weights, progress or (lambda *_: None))
    limit = limit_of(sources, budget)
    only_size = budget.rel_error is None and budget.max_abs is None
    if only_size:
        assert limit is not None  # a budget has a size or an error
        about = sum(source.about_exact_bytes for source in sources)
        original = sum(source.array.nbytes for source in sources)
        # An estimate does not see repeats, which shorten a file too.
        if about <= 1.1 * limit or original <= 2 * limit:
            exact = search.exact
            if len(exact.data) <= limit:
                return exact
        draft = search.within_bytes(limit)
    elif budget.max_abs is not None:
        draft = search.within_max_abs(budget.max_abs)
    else:
        assert budget.rel_error is not None  # the only one that is left
        draft = search.within_rel_error(budget.rel_error)
    # What a step saves in few weights may be less than it takes in the header.
    about = sum(source.about_exact_bytes for source in sources)
    stepped = any(tensor.record.step for tensor in draft.tensors)
    if stepped and about <= 1.1 * len(draft.data):
        draft = min(search.exact, draft, key=_length)
    if limit is None or len(draft.data) <= limit:
        return draft
    needed = len(draft.data)
    raise InfeasibleBudgetError(
        "the smallest file of these weights"
        + ("" if only_size else " within the error"),
        needed=needed,
        limit=limit,
        unit="bytes",
        hint=_hint(search, draft, limit, only_size=only_size),
    )


def _weights(
    sources: Sequence[Source], sensitivity: Mapping[str, float] | None
) -> dict[str, float]:
    """The weight of each tensor's squared error.

    Raises:
        ValueError: a name that no tensor has, a tensor without one, or a weight that
            is negative or no number.
    """
    floats = [source for source in sources if source.quantisable]
    given = sensitivity or {}
    for name, weight in given.items():
        if name not in {source.name for source in sources}:
            raise ValueError(f"sensitivity names {name!r}, which is no tensor.")
        if not 0 <= weight < math.inf:
            raise ValueError(f"sensitivity of {name!r} must be >= 0, got {weight}.")
    if sensitivity is None:
        middle = _middle([(s.rms, s.array.size) for s in floats])
        weights = {s.name: _worth(s.rms, middle) for s in floats}
    else:
        missing = [s.name for s in sources if s.energy and s.name not in given]
        if missing:
            raise ValueError(
                f"sensitivity lacks {missing[0]!r}: give every float tensor one."
            )
        # Nothing is worth nothing: its step would have no end. Little is what is
        # little beside the tensor's own squares, whatever unit these are in.
        squares = {s.name: s.rms**2 for s in floats}
        most = max((given[n] * square for n, square in squares.items()), default=0.0)
        least = 1e-9 * most or 1.0
        weights = {n: max(given[n], least / square) for n, square in squares.items()}
    if sensitivity is None:
        small = {s.name for s in floats if s.small}
        for name in small:
            weights[name] /= _SMALL_SHARE**2
    return weights


def _middle(sizes: Sequence[tuple[float, int]]) -> float:
    """The root mean square that half of all numbers are in tensors at or below."""
    half, count = sum(size for _, size in sizes) / 2, 0
    for rms, size in sorted(sizes):
        count += size
        if count >= half:
            return rms
    return 1.0


def _worth(rms: float, middle: float) -> float:
    """What a squared error of a tensor is worth: 1 over its size, where that is common.

    >>> _worth(0.5, 1.0), _worth(1 / 64, 1.0)
    (2.0, 256.0)
    """
    return min(max(rms, middle / _ALIKE), middle * _ALIKE) / rms**2


def _hint(search: "_Search", draft: Draft, limit: int, *, only_size: bool) -> str:
    """What would help besides more bytes; names the tensors that are in the way."""
    needed = len(draft.data)
    if not draft.tensors:
        return "give a tree with weights in it: this one has none."
    header = needed - sum(len(b) for tensor in draft.tensors for b in tensor.blocks)
    if header > limit:
        return (
            f"compress fewer tensors: without any weight the file takes {header:,} "
            "bytes, for names, shapes and checks."
        )
    exact_only = search.exact_only()
    binds = max(draft.tensors, key=lambda t: sum(map(len, t.blocks)))
    longest = (
        f"{binds.record.name or '(the array)'!r} alone takes "
        f"{sum(map(len, binds.blocks)):,} bytes."
    )
    if not only_size and sum(source.exact_bytes for source in exact_only) < limit:
        return f"allow a larger error: {longest}"
    named: list[str] = []
    for s in exact_only:
        if needed <= limit:
            break
        needed -= s.exact_bytes
        place = s.name or "(the array)"
        named.append(f"{place!r} ({s.array.dtype.name}, {s.exact_bytes:,} bytes)")
    if needed > limit:  # the rest is too long as well
        return f"compress fewer weights: {longest}"
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return (
        "convert or take out what can only be stored exactly (docs/compress.md says "
        f"what): {', '.join(named[:3])}{more}."
    )


@dataclasses.dataclass(frozen=True)
class _Search:
    """The search for one tree.

    Everywhere `scale` is the binary logarithm of step / `_unit(source)`.
    """

    sources: tuple[Source, ...]
    structure: Any
    weights: Mapping[str, float]
    progress: Progress

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
        exact = sum(source.about_exact_bytes for source in self.sources)
        if exact > 2 * len(draft.data):
            return draft
        return min(draft, self.exact, key=_length)

    def within_bytes(self, limit: int) -> Draft:
        """The file closest below the limit; the shortest there is if all are above."""
        if limit < _TIGHT * sum(s.array.nbytes for s in self.sources):
            shortest = self._shortest
            if len(shortest.data) > limit:
                return shortest
            if len(shortest.data) > limit * (1 - _CLOSE):
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
            return (len(draft.data) - limit * (1 - _CLOSE / 2)) / (limit * _CLOSE / 2)

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
    return len(draft.data)
