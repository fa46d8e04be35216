"""Estimate the bytes and the error of tensors at steps, and keep the estimates."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from .._batches import batches
from ..arrays import Distortion, release
from ..codecs import Form, Step, grid, row_length, to_levels, to_values
from ._sample import RatePoint, Sample
from ._source import STEP_BYTES, Source

# Lanes of samples that are quantised side by side: more would leave the cache.
_SAMPLE_LANES = 3072
# Below this share of the estimated exact bytes a coding is taken to be shorter, without
# counting the exact bytes.
_SHORTER = 0.8


@dataclasses.dataclass(frozen=True, eq=False)
class Rates:
    """Estimates of bytes and error, each made once."""

    _points: dict[tuple[Source, Step], RatePoint | None] = dataclasses.field(
        default_factory=dict
    )
    _samples: dict[Source, Sample] = dataclasses.field(default_factory=dict)

    def at(self, source: Source, step: Step | None) -> RatePoint:
        """Estimate a tensor at a step; of the exact coding if it is shorter."""
        point = None
        if step is not None and source.quantisable:
            if (source, step) not in self._points:
                self.make([(source, step)])
            point = self._points[source, step]
        about = self.exact_bytes(source)
        if point is not None and point.bytes < _SHORTER * about:
            return point
        if point is None:
            return RatePoint(about, 0.0, 0.0)
        saved = STEP_BYTES * source.quantisable
        exact = RatePoint(source.exact.bytes - saved, 0.0, 0.0)
        return min(exact, point, key=_bytes)

    def exact_bytes(self, source: Source) -> float:
        """Estimate the exact coding, less the header bytes that it saves."""
        # Tensors that must be exact anyway are counted; others seldom are, in the end.
        if not source.quantisable:
            return source.exact.bytes
        return source.exact.estimated_bytes - STEP_BYTES

    def make(self, wanted: Iterable[tuple[Source, Step | None]]) -> None:
        """Estimate some tensors at some steps, their samples side by side."""
        new = {
            (source, step): source.form_at(step).trellis
            for source, step in wanted
            if step is not None
            and source.quantisable
            and (source, step) not in self._points
        }

        def count_lanes(pair: tuple[Source, Step]) -> int:
            return self._sample(pair[0]).lanes.count if new[pair] else 0

        for group in batches(new, count_lanes, _SAMPLE_LANES):
            self._make_group(group, new)

    def _make_group(
        self,
        group: Sequence[tuple[Source, Step]],
        is_sampled: Mapping[tuple[Source, Step], bool],
    ) -> None:
        sampled = [pair for pair in group if is_sampled[pair]]
        levels = grid.quantise([self._sample(s).at(step) for s, step in sampled])
        quantised = dict(zip(sampled, levels, strict=True))
        for source, step in group:
            levels = quantised.get((source, step))
            self._points[source, step] = self._estimate(source, step, levels)

    def _sample(self, source: Source) -> Sample:
        if source not in self._samples:
            self._samples[source] = Sample.draw(source.array, source.scaling)
            release(source.array)
        return self._samples[source]

    def _estimate(
        self, source: Source, step: Step, levels: grid.GridLevels | None
    ) -> RatePoint | None:
        options: list[RatePoint | None] = []
        form = source.form_at(step)
        if levels is not None:
            options.append(self._sample(source).estimate(step, levels))
        if not form.trellis or (form == Form() and source.tries_both):
            options.append(_measure_uniform(source, step))
        return min((p for p in options if p is not None), key=_bytes, default=None)


def _measure_uniform(source: Source, step: Step) -> RatePoint | None:
    # All numbers: the uniform grid is cheap enough to need no sample.
    total_bytes, error = 0.0, Distortion()
    row = row_length(source.array.shape)
    for part in source.parts():
        levels = to_levels(part, step)
        if levels is None:
            return None
        total_bytes += grid.estimate_uniform_bytes(levels, row)
        error += Distortion.between(to_values(levels, step, part.dtype), part)
    return RatePoint(total_bytes, error.energy, error.energy)


def _bytes(point: RatePoint) -> float:
    return point.bytes
