"""`LayeredSource`: a tensor of the search that is coded progressively by bit planes."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ..arrays import Distortion, relative_error, release, round_up
from ..codecs import (
    BLOCK,
    CodedBlocks,
    Step,
    bit_planes,
    step_below,
    to_levels,
    to_values,
    trellis,
)
from ..container import Digest, EncodedTensor, Layer, Record
from ._sample import RatePoint
from ._source import KEPT, STEP_BYTES, CountProgress, Source

# A tensor that ends exact has planes down to this share of its deviation, by bytes of
# a number: finer planes cost as much as the residual would, and more layers.
_FINEST_PLANE = {2: 1 / 16, 4: 1 / 256, 8: 1 / 65536}
_SAMPLE = 1 << 16
# How close the finest step of layers is found, in powers of two, and how far below the
# plain coding an estimate must be.
_CAP_TOLERANCE, _CAP_MARGIN = 1 / 16, 0.995
_LAYER_BYTES = 30  # of a layer, in the header
# The number of layers that a tensor is assumed to have before it is coded.
_TYPICAL_LAYERS = 5


class LayeredSource(Source):
    """One tensor to be coded in bit planes, where it can be."""

    _step_bytes: ClassVar[int] = STEP_BYTES + _TYPICAL_LAYERS * _LAYER_BYTES

    @property
    def can_scale(self) -> bool:
        """Never: layers have one step."""
        return False

    def codec_at(self, step: Step) -> str:
        """Return the codec at a step."""
        return "planes" if bit_planes.can_split(step) else "lossless"

    def trellis_inputs(
        self, step: Step | None, codec: str | None
    ) -> Iterator[trellis.TrellisInput]:
        """Yield nothing: layers need no trellis."""
        return iter(())

    def encode(
        self,
        step: Step | None,
        codec: str | None,
        *,
        trellis_blocks: CodedBlocks,
        progress: CountProgress,
    ) -> EncodedTensor:
        """Return the layers down to a step or to the exact bits, or one exact block."""
        if codec in ("lossless", "stored"):  # as a plan found to be best
            return self._code_plain(progress)
        if step is not None and self.quantisable:
            layers = self._encode_layers(step, progress, exact=False)
            layers = self._prefer_plain_if_shorter(layers)
            if layers is not None:
                return layers
        return self._encode_exactly(progress)

    @functools.cached_property
    def exact_bytes(self) -> int:
        """Bytes of the lossless coding without layers."""
        return self._lossless_length.total()

    @property
    def exact_cost_bytes(self) -> int:
        """About the bytes of the layers down to the exact bits, less header bytes.

        The plain coding is shorter, but cannot be read in part.
        """
        return self._exact_cost_bytes

    @property
    def exact_cost_estimate(self) -> float:
        """`exact_cost_bytes`, which is an estimate already."""
        return self._exact_cost_bytes

    @functools.cached_property
    def _exact_cost_bytes(self) -> int:
        plain = super().exact_cost_bytes
        if not self.quantisable:
            return plain
        if self.array.nbytes <= KEPT:
            coded = self.exact
            if not coded.record.planes:
                return plain
            return _total_bytes(coded) - _LAYER_BYTES
        step = self._last_step
        inexact = None if step is None else self._estimate(step)
        if step is None or inexact is None or inexact.bytes >= plain:
            return plain
        levels = to_levels(self._sampled, step)
        assert levels is not None  # its bytes were estimated
        values = bit_planes.reconstruct(levels, 0, step, self._sampled.dtype)
        residual = len(bit_planes.encode_residual(self._sampled, values))
        residual *= self.array.size / self._sampled.size
        return round(inexact.bytes + residual) + _LAYER_BYTES

    def cap_step(self, step: Step) -> Step:
        """Return the step, or the finest one that still pays for layers."""
        if self._finest_step is None:
            return step
        return max(step, self._finest_step, key=lambda s: s.size)

    @functools.cached_property
    def _finest_step(self) -> Step | None:
        """The finest step whose layers are shorter than the plain coding, if any is."""
        fine, coarse = -60.0, 2.0  # in powers of two, relative to the deviation
        finest = None
        # Bisection on the logarithm of the step: layers shorten as it grows, so one
        # border separates the steps that pay from those that do not.
        while coarse - fine > _CAP_TOLERANCE:
            middle = (fine + coarse) / 2
            step = step_below(2**middle * self.rms)
            point = None if step is None else self._estimate(step)
            if point is None or point.bytes >= _CAP_MARGIN * super().exact_cost_bytes:
                fine = middle
            else:
                coarse, finest = middle, step
        return finest

    @functools.cached_property
    def _sampled(self) -> np.ndarray:
        """Eight pieces from all over the tensor."""
        flat = self.array.reshape(-1)
        if flat.size > _SAMPLE:
            part = _SAMPLE // 8
            first = np.linspace(0, flat.size - part, 8).astype(np.intp)
            flat = np.concatenate([flat[i : i + part] for i in first])
        release(self.array)
        return flat

    def placeholder(self) -> EncodedTensor:
        """Return the tensor with empty chunks, to measure the length of the header."""
        plain = super().placeholder()
        if not self.quantisable:
            return plain
        digest = plain.record.digest
        layers = [
            Layer(0.00123 * (i + 1), 0.0123 * (i + 1), digest[i:] + "0" * i)
            for i in range(_TYPICAL_LAYERS)
        ]
        chunks = -(-self.array.size // BLOCK)
        record = dataclasses.replace(
            plain.record,
            codec="planes",
            planes=_TYPICAL_LAYERS,
            layers=tuple(layers),
            norm=self.energy**0.5,
        )
        return dataclasses.replace(
            plain, record=record, blocks=(b"",) * (chunks * len(layers))
        )

    def _code_exactly(self, progress: CountProgress) -> EncodedTensor:
        if self.quantisable and (step := self._last_step) is not None:
            layers = self._encode_layers(step, progress, exact=True)
            layers = self._prefer_plain_if_shorter(layers)
            if layers is not None:
                return layers
        return self._code_plain(progress)

    @property
    def _last_step(self) -> Step | None:
        """The step of the last layer before the residual."""
        return step_below(_FINEST_PLANE[self.array.dtype.itemsize] * self.rms)

    def _code_plain(self, progress: CountProgress = lambda _: None) -> EncodedTensor:
        plain = super()._code_exactly(progress)
        record = dataclasses.replace(plain.record, norm=self.energy**0.5)
        return dataclasses.replace(plain, record=record)

    def _prefer_plain_if_shorter(
        self, layered: EncodedTensor | None
    ) -> EncodedTensor | None:
        """Return the plain coding where it is no longer than the inexact layers."""
        if layered is None:
            return None
        layers, planes = len(layered.record.layers), layered.record.planes
        inexact = layered.blocks[: len(layered.blocks) // layers * planes]
        length = STEP_BYTES + planes * _LAYER_BYTES + sum(map(len, inexact))
        if length >= self.exact_bytes:
            return self._code_plain()
        return layered

    def _estimate(
        self, step: Step, quantised: trellis.TrellisLevels | None = None
    ) -> RatePoint | None:
        assert quantised is None  # layers need no trellis
        if not bit_planes.can_split(step):
            return None
        sample = self._sampled
        levels = to_levels(sample, step)
        if levels is None or bit_planes.exceeds_range(levels, sample.dtype):
            return None
        scale = self.array.size / sample.size
        error = Distortion.between(to_values(levels, step, sample.dtype), sample)
        planes = bit_planes.count_planes(self.rms, step)
        length = scale * bit_planes.estimate_bytes(levels, planes)
        length += _LAYER_BYTES * planes - self._step_bytes
        return RatePoint(length, scale * error.energy, scale * error.energy)

    def _encode_layers(
        self,
        step: Step,
        progress: CountProgress,
        *,
        exact: bool,
        planes: int | None = None,
    ) -> EncodedTensor | None:
        """Code every layer of every chunk; None where some number is out of range."""
        if not bit_planes.can_split(step):
            return None
        planes = planes or bit_planes.count_planes(self.rms, step)
        count = planes + exact
        blocks: list[list[bytes]] = [[] for _ in range(count)]
        errors = [Distortion() for _ in range(count)]
        digests = [Digest() for _ in range(count)]
        dtype, done = self.array.dtype, 0
        for part in self._parts():
            levels = to_levels(part, step)
            if levels is None or bit_planes.exceeds_range(levels, dtype):
                return None
            for layer, block in enumerate(bit_planes.encode_layers(levels, planes)):
                blocks[layer].append(block)
            values = part
            for layer in range(planes):
                shift = planes - 1 - layer
                # The sign is split off, because shifting a negative number rounds it
                # down. With magnitudes the cells are symmetric, and only that of zero
                # is twice as wide.
                known = np.sign(levels) * (np.abs(levels) >> shift)
                values = bit_planes.reconstruct(known, shift, step, dtype)
                if not np.isfinite(values).all():
                    # The middle of a cell overflows the dtype: start one layer later.
                    fewer = planes - layer - 1
                    if not fewer:
                        return None
                    return self._encode_layers(
                        step, progress, exact=exact, planes=fewer
                    )
                errors[layer] += Distortion.between(values, part)
                digests[layer].update(values)
            if exact:
                blocks[-1].append(bit_planes.encode_residual(part, values))
                digests[-1].update(part)
            done += part.size
            progress(done)
        record = self._record("planes", step, digests[-1].hexdigest(), errors[-1])
        coded = EncodedTensor(
            self._add_layers(record, planes, errors, [d.hexdigest() for d in digests]),
            tuple(block for layer in blocks for block in layer),
            errors[-1],
        )
        worse = [i for i in range(1, planes) if errors[i].energy > errors[i - 1].energy]
        if worse:
            # A layer that does not help: one layer in place of all up to there, unless
            # that makes the digits longer.
            merged = self._encode_layers(
                step, progress, exact=exact, planes=planes - worse[-1]
            )
            if merged is not None and _total_bytes(merged) <= _total_bytes(coded):
                return merged
        return coded

    def _add_layers(
        self,
        record: Record,
        planes: int,
        errors: list[Distortion],
        digests: list[str],
    ) -> Record:
        layers = tuple(
            Layer(
                round_up(relative_error(error.energy, self.energy)),
                round_up(error.max_abs),
                digest,
            )
            for error, digest in zip(errors, digests, strict=True)
        )
        return dataclasses.replace(
            record, planes=planes, layers=layers, norm=self.energy**0.5
        )


def _total_bytes(coded: EncodedTensor) -> int:
    layers = len(coded.record.layers) * _LAYER_BYTES
    return layers + sum(map(len, coded.blocks))
