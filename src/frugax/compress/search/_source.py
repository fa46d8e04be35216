"""`Source`: a tensor of the search, with cached codings and errors at step sizes."""

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..arrays import (
    FLOATS_OF_ML_DTYPES,
    QUANTISABLE,
    Distortion,
    relative_error,
    release,
    round_up,
    sum_squares,
)
from ..codecs import (
    BLOCK,
    MAX_LEVEL,
    MIN_STEP,
    ChannelScaling,
    CodedBlocks,
    Form,
    LosslessLength,
    RowScaling,
    Step,
    compute_type,
    encode_lossless,
    estimate_lossless_bytes,
    grid,
    numbers_per_chunk,
    row_length,
    split_chunks,
    step_below,
    to_levels,
    to_values,
)
from ..container import Digest, EncodedTensor, Record, compute_digest
from ._sample import RatePoint, Sample

# Below this, or with one axis (biases, norms), a tensor is "small": it costs few bytes
# and its errors do much.
_SMALL_SIZE = 256
# Larger tensors without negative numbers are not the scales of a norm; numbers this
# many times below the geometric mean count as if they were not smaller.
_MOST_DIVISORS, _DIVISOR_RANGE = 1 << 16, 64
# Fewer numbers do not pay for the tables of a trellis, and up to the second size both
# codecs are tried.
_MIN_TRELLIS, _TRY_BOTH = 1 << 10, 1 << 14
# An empty block of levels takes this much, and so do a step and its errors in the
# header.
_MIN_STEPPED_BYTES, STEP_BYTES = 22, 12
# The trellis rounds to an integer of one residue modulo 4, which may be 2 steps off; 8
# keeps the outermost number clear of the limit.
_MAX_TRELLIS_LEVEL = grid.MAX_FAR_LEVEL - 8
_ABOVE = 1 + 2.0**-9  # a step's mantissa has 11 bits
# Lanes of samples that are quantised side by side: more would leave the cache.
_SAMPLE_LANES = 1024
# Below this share of the estimated exact bytes a coding is taken to be shorter, without
# counting the exact bytes.
_SHORTER = 0.8
# The form of tensors of few numbers, and of a limit of the largest error.
UNIFORM = Form(trellis=False)
KEPT = 1 << 16  # bytes of a tensor whose exact coding is cached: it is asked for often
# A trellis of this share of a uniform step makes the same error: 0.26 and 1/12 steps^2.
TRELLIS_STEP = math.sqrt(1 / 12 / 0.26)

_NAMED = 20  # tensors that a warning names

# Called with how many numbers of a tensor are done.
CountProgress = Callable[[int], object]


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One tensor to compress.

    Attributes:
        name: its name in the tree.
        array: its values; contiguous, little-endian; never written to.
        scaling: how the steps of its rows differ; None where one step is for all.
        ties: places in the tree and names of tensors that are tied to it.
    """

    name: str
    array: np.ndarray
    scaling: RowScaling | ChannelScaling | None = None
    ties: tuple[tuple[int, str], ...] = ()

    @functools.cached_property
    def energy(self) -> float:
        """Sum of squares of a finite float tensor; 0 for any other: not quantisable."""
        if self.array.dtype.name not in QUANTISABLE or not self.array.size:
            return 0.0
        # NaN, infinities and overflow all give a sum that is not finite, so one pass
        # finds the tensors that must stay exact and measures the others.
        total = math.fsum(map(sum_squares, self._parts()))
        return total if math.isfinite(total) else 0.0

    @functools.cached_property
    def max_abs(self) -> float:
        """Largest absolute value of a quantisable tensor."""
        if not self.energy:
            return 0.0
        return max(float(max(p.max(), -p.min())) for p in self._parts())

    def count_not_finite(self) -> int:
        """Return how many numbers are NaN or infinite."""
        array = self.array
        can_be = array.dtype.kind in "fc" or array.dtype.name in FLOATS_OF_ML_DTYPES
        if self.energy or not can_be:  # the sum of squares is finite
            return 0
        return sum(int(p.size - np.isfinite(p).sum()) for p in self._parts())

    @property
    def quantisable(self) -> bool:
        """Whether some step keeps something of the tensor; else it stays exact."""
        return not self.tiny and self.max_abs >= MIN_STEP.size

    @property
    def tiny(self) -> bool:
        """Whether no coding is shorter than the weights as they are."""
        return self.array.nbytes <= _MIN_STEPPED_BYTES + STEP_BYTES

    @property
    def rms(self) -> float:
        """Root mean square of a quantisable tensor."""
        return math.sqrt(self.energy / max(1, self.array.size))

    @property
    def small(self) -> bool:
        """Whether to keep it much more exact than the others."""
        axes = sum(length > 1 for length in self.array.shape)
        return axes < 2 or self.array.size < _SMALL_SIZE

    @functools.cached_property
    def divisor_size(self) -> float | None:
        """The size of numbers that others are divided or multiplied by; None if not so.

        A small tensor without negative numbers is mostly a variance or a scale, and the
        *relative* error of each number counts. The mean of its squares is 1 over the
        square of this size for a step of 1, so the smallest numbers set it.
        """
        if not (self.small and self.quantisable and self.array.size <= _MOST_DIVISORS):
            return None
        values = self.array.astype(np.float64).reshape(-1)
        if values.min() < 0:
            return None
        typical = math.exp(np.log(values[values > 0]).mean())
        # Beside the constant that norms add to variances, still smaller ones are zero.
        floored = np.maximum(values, typical / _DIVISOR_RANGE)
        return float(np.mean(floored**-2.0)) ** -0.5

    @functools.cached_property
    def exact_bytes(self) -> int:
        """Bytes of the lossless coding; a sample would not show repetitions."""
        if self.array.nbytes <= KEPT:
            return sum(map(len, self._cached_exact.blocks))
        return self._lossless_length.total()

    def exact_exceeds(self, limit: int) -> bool:
        """Whether `exact_bytes` is above a limit, without coding more than shows it."""
        if self.array.nbytes <= KEPT:
            return self.exact_bytes > limit
        return self._lossless_length.exceeds(limit)

    @property
    def exact_cost_bytes(self) -> int:
        """`exact_bytes` less the header bytes that an exact tensor saves."""
        return self.exact_bytes - STEP_BYTES * self.quantisable

    @property
    def exact_cost_estimate(self) -> float:
        """About `exact_cost_bytes`, from a sample of a large quantisable tensor."""
        return self._exact_estimate - STEP_BYTES * self.quantisable

    @functools.cached_property
    def _exact_estimate(self) -> float:
        # Tensors that must be exact anyway are counted; others seldom are, in the end.
        if self.array.nbytes <= KEPT or not self.quantisable:
            return self.exact_bytes
        return estimate_lossless_bytes(self.array)

    @functools.cached_property
    def _lossless_length(self) -> LosslessLength:
        return LosslessLength(self.array)

    def cap_step(self, step: Step) -> Step:
        """Return the step, or the finest one whose integers are all in range.

        With a finer one the tensor would be exact, which a size need not have room for;
        it has for a tensor of few numbers.
        """
        if not self.can_scale:
            return step
        of_uniform = MAX_LEVEL[np.dtype(compute_type(self.array.dtype)).itemsize]
        largest = max(of_uniform, _MAX_TRELLIS_LEVEL)
        finest = step_below(self.max_abs / largest * _ABOVE)
        return step if finest is None else max(step, finest, key=lambda s: s.size)

    @property
    def can_scale(self) -> bool:
        """Whether it has numbers enough for a trellis, which rows with scales need."""
        return self.array.size >= _MIN_TRELLIS

    def form_at(self, step: Step) -> Form:
        """Return the form of integers that suits the tensor at a step."""
        if not self.can_scale or self.max_abs / step.size > _MAX_TRELLIS_LEVEL:
            return UNIFORM
        return Form() if self.scaling is None else self.scaling.form

    def estimate(self, step: Step | None) -> RatePoint:
        """Estimate bytes and error at a step; of the exact coding if it is shorter."""
        point = None
        if step is not None and self.quantisable:
            if step not in self._points:
                estimate_together([(self, step)])
            point = self._points[step]
        if point is not None and point.bytes < _SHORTER * self.exact_cost_estimate:
            return point
        if point is None:
            return RatePoint(self.exact_cost_estimate, 0.0, 0.0)
        exact = RatePoint(self.exact_cost_bytes, 0.0, 0.0)
        return min(exact, point, key=_bytes)

    def grid_inputs(
        self, step: Step | None, form: Form | None
    ) -> Iterator[grid.GridInput]:
        """Yield the chunks that `encode` needs coded."""
        if step is None:
            return
        for each in self._candidates(step, form):
            scaling = self.scaling if each.scaled or each.columns else None
            yield from split_chunks(self.array, step, scaling, trellis=each.trellis)

    def encode(
        self,
        step: Step | None,
        form: Form | None,
        *,
        blocks: CodedBlocks,
        progress: CountProgress,
    ) -> EncodedTensor:
        """Return the shortest coding at a step; the exact one if that is as short."""
        if step is None:
            return self._encode_exactly(progress)
        coded = (
            self._encode_stepped(each, step, blocks, progress)
            for each in self._candidates(step, form)
        )
        options = [option for option in coded if option is not None]
        if options:
            best = min(options, key=lambda e: (sum(map(len, e.blocks)), e.record.codec))
            if self.exact_exceeds(sum(map(len, best.blocks)) + STEP_BYTES):
                return best
        return self._encode_exactly(progress)

    def uniform_distortion(self, step: Step | None) -> Distortion:
        """Measure the error of the uniform grid of a step; none if it is exact."""
        if step is None or not self.energy:
            return Distortion()
        total = Distortion()
        for part in self._parts():
            levels = to_levels(part, step)
            if levels is None:  # the tensor would be kept exact
                return Distortion()
            total += Distortion.between(to_values(levels, step, part.dtype), part)
        return total

    def is_quantisable_at(self, step: Step | None) -> bool:
        """Whether all levels of this step are in range."""
        if step is None or not self.energy:
            return False
        return all(to_levels(part, step) is not None for part in self._parts())

    def placeholder(self) -> EncodedTensor:
        """Return the tensor with empty chunks, to measure the length of the header."""
        stepped = self.quantisable
        codec = str(Form()) if stepped else "lossless"
        # Steps, digests and errors that compress like real ones, different for each.
        step = Step(1024 + len(self.name) * 37 % 1024, -20) if stepped else None
        digest = compute_digest(np.frombuffer(self.name.encode(), np.uint8))
        error = Distortion(self.energy * 0.00123, 0.0123)
        chunks = -(-self.array.size // numbers_per_chunk(codec, self.array.shape))
        record = self._record(codec, step, digest, error)
        return EncodedTensor(record, (b"",) * chunks, error)

    def _encode_exactly(self, progress: CountProgress) -> EncodedTensor:
        if self.array.nbytes <= KEPT:
            return self._cached_exact
        return self._code_exactly(progress)

    @functools.cached_property
    def _cached_exact(self) -> EncodedTensor:
        return self._code_exactly(lambda _: None)

    def _code_exactly(self, progress: CountProgress) -> EncodedTensor:
        codec, blocks = encode_lossless(self.array, progress)
        digest = Digest()
        for part in self._parts():
            digest.update(part)
        record = self._record(codec, None, digest.hexdigest(), Distortion())
        return EncodedTensor(record, blocks, Distortion())

    @functools.cached_property
    def _points(self) -> dict[Step, RatePoint | None]:
        return {}

    @functools.cached_property
    def _sample(self) -> Sample:
        sample = Sample.draw(self.array, self.scaling)
        release(self.array)
        return sample

    def _estimate(
        self, step: Step, quantised: grid.GridLevels | None
    ) -> RatePoint | None:
        options: list[RatePoint | None] = []
        form = self.form_at(step)
        if quantised is not None:
            options.append(self._sample.estimate(step, quantised))
        if not form.trellis or (form == Form() and self._tries_both):
            options.append(self._measure_uniform(step))
        return min((p for p in options if p is not None), key=_bytes, default=None)

    def _measure_uniform(self, step: Step) -> RatePoint | None:
        # All numbers: the uniform grid is cheap enough to need no sample.
        total_bytes, error = 0.0, Distortion()
        row = row_length(self.array.shape)
        for part in self._parts():
            levels = to_levels(part, step)
            if levels is None:
                return None
            total_bytes += grid.estimate_uniform_bytes(levels, row)
            error += Distortion.between(to_values(levels, step, part.dtype), part)
        return RatePoint(total_bytes, error.energy, error.energy)

    @property
    def _tries_both(self) -> bool:
        return self.array.size <= _TRY_BOTH

    def _candidates(self, step: Step, form: Form | None) -> list[Form]:
        """Return the forms to try at a step: none if the tensor stays exact."""
        if not self.energy or self.tiny:
            return []
        forms = [form or self.form_at(step)]
        if form is None and forms == [Form()] and self._tries_both:
            forms.append(UNIFORM)
        return forms

    def _encode_stepped(
        self, form: Form, step: Step, blocks: CodedBlocks, progress: CountProgress
    ) -> EncodedTensor | None:
        """Make the tensor of the next chunks; None if some number is too large.

        All chunks of the tensor are taken from `blocks`, even then.
        """
        flat, codec = self.array.reshape(-1), str(form)
        chunks = -(-flat.size // numbers_per_chunk(codec, self.array.shape))
        kept: list[bytes] = []
        error, digest, start = Distortion(), Digest(), 0
        for coded in itertools.islice(blocks, chunks):
            if coded is None:
                continue
            block, values = coded
            if form.columns:
                row = math.prod(self.array.shape[1:])
                values = grid.transpose(values.reshape(row, -1)).reshape(-1)
            kept.append(block)
            digest.update(values)
            part = flat[start : start + len(values)]
            error += Distortion.between(values, part)
            release(part)
            start += len(values)
            progress(start)
        if len(kept) < chunks:
            return None
        record = self._record(codec, step, digest.hexdigest(), error)
        return EncodedTensor(record, tuple(kept), error)

    def _parts(self) -> Iterator[np.ndarray]:
        """Yield views of at most a block: no float64 copy of a whole tensor."""
        flat = self.array.reshape(-1)
        for i in range(0, flat.size, BLOCK):
            part = flat[i : i + BLOCK]
            try:
                yield part
            finally:  # also where the caller stops early
                release(part)

    def _record(
        self, codec: str, step: Step | None, digest: str, error: Distortion
    ) -> Record:
        return Record(
            name=self.name,
            dtype=self.array.dtype.name,
            shape=self.array.shape,
            codec=codec,
            step=step,
            rel_error=round_up(relative_error(error.energy, self.energy)),
            max_abs=round_up(error.max_abs),
            digest=digest,
            chunks=(),
        )


def _bytes(point: RatePoint) -> float:
    return point.bytes


def warn_of_not_finite(sources: Iterable[Source], *, stack_level: int) -> None:
    """Warn of NaN and infinite numbers, which a training that diverged leaves."""
    counts = {s.name or "the array": s.count_not_finite() for s in sources}
    found = [f"{name!r} ({count:,})" for name, count in counts.items() if count]
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        warnings.warn(
            "these tensors have NaN or infinite numbers, and are kept as they are: "
            f"{', '.join(found[:_NAMED])}{more}.",
            stacklevel=stack_level + 1,
        )


def estimate_together(wanted: Iterable[tuple[Source, Step | None]]) -> None:
    """Estimate some tensors at some steps, whose samples are quantised side by side."""
    new = {
        (source, step): source.form_at(step).trellis
        for source, step in wanted
        if step is not None and source.quantisable and step not in source._points
    }
    group: list[tuple[Source, Step]] = []
    lanes = 0
    for (source, step), is_sampled in new.items():
        group.append((source, step))
        lanes += source._sample.lanes.count if is_sampled else 0
        if lanes >= _SAMPLE_LANES:
            _estimate_group(group, new)
            group, lanes = [], 0
    if group:
        _estimate_group(group, new)


def _estimate_group(
    group: Sequence[tuple[Source, Step]], is_sampled: Mapping[tuple[Source, Step], bool]
) -> None:
    sampled = [pair for pair in group if is_sampled[pair]]
    levels = grid.quantise([source._sample.at(step) for source, step in sampled])
    quantised = dict(zip(sampled, levels, strict=True))
    for source, step in group:
        source._points[step] = source._estimate(step, quantised.get((source, step)))
