"""What is compressed: each tensor with all that a search asks of it again and again."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from ..arrays._error import Distortion, relative_error, round_up
from ..arrays._leaves import QUANTISABLE
from ..arrays._mapped import release
from ..codecs import _uniform as _quantised
from ..codecs._blocks import (
    BLOCK,
    Blocks,
    count_lossless_bytes,
    encode_lossless,
    encode_uniform,
    numbers_per_chunk,
    trellis_parts,
)
from ..codecs._uniform import LEAST_STEP, Step, to_levels, to_values
from ..codecs.trellis._quantise import FARTHEST, Part
from ..container._metadata import Digest, EncodedTensor, Record, compute_digest
from ._sample import Point, Sample

# Below this, or with one axis (biases, norms), a tensor is "small": it weighs little
# and errs much.
_SMALL_SIZE = 256
# Fewer numbers do not pay for the tables of a trellis, and up to the second both
# codecs are tried.
_LEAST_TRELLIS, _BOTH = 1 << 10, 1 << 14
# A block of levels takes this much with nothing in it, and so do a step and its errors
# in the header.
_LEAST_STEPPED, STEP_BYTES = 28, 12
KEPT = 1 << 16  # bytes of a tensor whose exact coding is kept: it is asked for often
# A trellis of this share of a uniform step makes the same error: 0.26 and 1/12 steps^2.
TRELLIS_STEP = math.sqrt(1 / 12 / 0.26)

# Called with how many numbers of a tensor are done.
Told = Callable[[int], object]


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One tensor to compress.

    Attributes:
        name: its name in the tree.
        array: its values; contiguous, little-endian; never written to.
    """

    name: str
    array: np.ndarray
    _step_bytes: ClassVar[int] = STEP_BYTES  # what a step takes in the header

    @functools.cached_property
    def energy(self) -> float:
        """Sum of squares if this is a finite float tensor, else 0: not quantisable."""
        if self.array.dtype.name not in QUANTISABLE or not self.array.size:
            return 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            parts = (part.astype(np.float64) for part in self._parts())
            total = math.fsum(float(part @ part) for part in parts)
        return total if math.isfinite(total) else 0.0

    @functools.cached_property
    def max_abs(self) -> float:
        """Largest absolute value of a quantisable tensor."""
        if not self.energy:
            return 0.0
        return max(float(np.abs(part).max()) for part in self._parts())

    @property
    def quantisable(self) -> bool:
        """Whether any step leaves something of the tensor; else it stays exact."""
        return not self.tiny and self.max_abs >= LEAST_STEP.size

    @property
    def tiny(self) -> bool:
        """Whether nothing is shorter than the weights as they are."""
        return self.array.nbytes <= _LEAST_STEPPED + STEP_BYTES

    @property
    def rms(self) -> float:
        """Root of the mean square of a quantisable tensor."""
        return math.sqrt(self.energy / max(1, self.array.size))

    @property
    def small(self) -> bool:
        """Whether to keep it much more exact than the others."""
        return self.array.ndim < 2 or self.array.size < _SMALL_SIZE

    @property
    def exact(self) -> EncodedTensor:
        """The tensor coded without loss; made anew each time if it is large."""
        return self._whole(lambda _: None)

    def _whole(self, told: Told) -> EncodedTensor:
        return self._small_exact if self.array.nbytes <= KEPT else self._exactly(told)

    @functools.cached_property
    def exact_bytes(self) -> int:
        """Bytes of the lossless coding; a sample would not show what repeats."""
        if self.array.nbytes <= KEPT:
            return sum(map(len, self.exact.blocks))
        return count_lossless_bytes(self.array)

    @property
    def exact_cost_bytes(self) -> int:
        """The same, less what it saves in the header beside the tensor with a step."""
        return self.exact_bytes - self._step_bytes * self.quantisable

    def cap_step(self, step: Step) -> Step:
        """The step, or the finest one where finer ones would leave no layers."""
        return step

    def codec_at(self, step: Step) -> str:
        """The codec that suits the tensor at a step."""
        fits = self.max_abs / step.size <= FARTHEST - 8
        return "trellis" if fits and self.array.size >= _LEAST_TRELLIS else "quantised"

    def estimate(self, step: Step | None) -> Point:
        """About what a step makes; the exact coding for none, or if that is shorter."""
        exact = Point(self.exact_cost_bytes, 0.0)
        if step is None or not self.quantisable:
            return exact
        point = self._points.get(step)
        if point is None:
            point = self._estimate(step) or exact
            self._points[step] = point
        return min(exact, point, key=_bytes)

    def trellis_parts(self, step: Step | None, codec: str | None) -> Iterator[Part]:
        """What `encoded` needs coded with the trellis, chunk by chunk."""
        if step is not None and "trellis" in self._codecs(step, codec):
            yield from trellis_parts(self.array, step)

    def encoded(
        self, step: Step | None, codec: str | None, *, trellis: Blocks, told: Told
    ) -> EncodedTensor:
        """The shortest coding at a step, for real; the exact one if that is as short.

        Args:
            step: None for the exact coding.
            codec: only this one; by default what suits.
            trellis: what `encode_trellis` makes of `trellis_parts`, and of more after
                them, perhaps.
            told: called with how many numbers are done.
        """
        if step is None:
            return self._whole(told)
        found = [
            self._stepped(
                name,
                step,
                trellis if name == "trellis" else encode_uniform(self.array, step),
                told,
            )
            for name in self._codecs(step, codec)
        ]
        coded = [e for e in found if e is not None]
        if not coded:
            return self._whole(told)
        best = min(coded, key=lambda e: sum(map(len, e.blocks)))
        longer = sum(map(len, best.blocks)) + STEP_BYTES >= self.exact_bytes
        return self._whole(told) if longer else best

    def uniform_distortion(self, step: Step | None) -> Distortion:
        """The error that the uniform grid of this step makes; none if it is exact."""
        if step is None or not self.energy:
            return Distortion()
        found = Distortion()
        for part in self._parts():
            levels = to_levels(part, step)
            if levels is None:
                return Distortion()
            found += Distortion.between(to_values(levels, step, part.dtype), part)
        return found

    def is_quantisable_at(self, step: Step | None) -> bool:
        """Whether the tensor can be quantised with this step."""
        if step is None or not self.energy:
            return False
        return all(to_levels(part, step) is not None for part in self._parts())

    @functools.cached_property
    def _small_exact(self) -> EncodedTensor:
        return self._exactly(lambda _: None)

    def _exactly(self, told: Told) -> EncodedTensor:
        codec, blocks = encode_lossless(self.array, told)
        digest = Digest()
        for part in self._parts():
            digest.update(part)
        record = self._record(codec, None, digest.hexdigest(), Distortion())
        return EncodedTensor(record, blocks, Distortion())

    @functools.cached_property
    def _points(self) -> dict[Step, Point]:
        return {}

    @functools.cached_property
    def _sample(self) -> Sample:
        found = Sample.of(self.array)
        release(self.array)
        return found

    def _estimate(self, step: Step) -> Point | None:
        found: list[Point | None] = []
        codec = self.codec_at(step)
        if codec == "trellis":
            found.append(self._sample.at(step))
        if codec == "quantised" or self.array.size <= _BOTH:
            found.append(self._uniform(step))
        return min((p for p in found if p is not None), key=_bytes, default=None)

    def _uniform(self, step: Step) -> Point | None:
        """What the uniform grid of this step makes."""
        bytes_, error = 0.0, Distortion()
        for part in self._parts():
            levels = to_levels(part, step)
            if levels is None:
                return None
            bytes_ += _quantised.estimate_bytes(levels)
            error += Distortion.between(to_values(levels, step, part.dtype), part)
        return Point(bytes_, error.energy)

    def _codecs(self, step: Step, codec: str | None) -> list[str]:
        """What to try at a step: nothing if the tensor stays exact."""
        if not self.energy or self.tiny:
            return []
        codecs = {codec or self.codec_at(step)}
        if codec is None and self.array.size <= _BOTH:
            codecs.add("quantised")
        return sorted(codecs)

    def _stepped(
        self, codec: str, step: Step, blocks: Blocks, told: Told
    ) -> EncodedTensor | None:
        """The tensor as the next chunks of `blocks`; None if some number is too large.

        All its chunks are taken off, whatever they are.
        """
        flat = self.array.reshape(-1)
        chunks = -(-flat.size // numbers_per_chunk(codec, self.array.shape))
        kept: list[bytes] = []
        error, digest, at = Distortion(), Digest(), 0
        for found in itertools.islice(blocks, chunks):
            if found is None:
                continue
            block, values = found
            kept.append(block)
            digest.update(values)
            part = flat[at : at + len(values)]
            error += Distortion.between(values, part)
            release(part)
            at += len(values)
            told(at)
        if len(kept) < chunks:
            return None
        record = self._record(codec, step, digest.hexdigest(), error)
        return EncodedTensor(record, tuple(kept), error)

    def placeholder(self) -> EncodedTensor:
        """The tensor in a file, with nothing in its chunks."""
        stepped = self.quantisable
        codec = "trellis" if stepped else "lossless"
        step = Step(1024 + len(self.name) * 37 % 1024, -20) if stepped else None
        digest = compute_digest(np.frombuffer(self.name.encode(), np.uint8))
        error = Distortion(self.energy * 0.00123, 0.0123)
        chunks = -(-self.array.size // numbers_per_chunk(codec, self.array.shape))
        record = self._record(codec, step, digest, error)
        return EncodedTensor(record, (b"",) * chunks, error)

    def _parts(self) -> Iterator[np.ndarray]:
        """Views of at most a block each: no float64 copy of a whole tensor."""
        flat = self.array.reshape(-1)
        for i in range(0, flat.size, BLOCK):
            part = flat[i : i + BLOCK]
            try:
                yield part
            finally:  # also where the caller has seen enough of the tensor
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


def _bytes(point: Point) -> float:
    return point.bytes
