"""A tensor of a progressive file: as a source is, but coded layer by layer."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ..arrays._error import Distortion, relative_error, round_up
from ..arrays._mapped import release
from ..codecs import _planes, _uniform as _quantised
from ..codecs._blocks import BLOCK, Blocks, count_lossless_bytes
from ..codecs._uniform import Step, step_below, to_levels
from ..codecs.trellis._quantise import Part
from ..container._metadata import Digest, EncodedTensor, Layer, Record
from ._sample import Point
from ._source import KEPT, STEP_BYTES, Source, Told

# A tensor that ends exact has planes down to this share of its deviation: finer ones
# cost what the exact layer would have cost, and more layers.
_FINEST = {2: 1 / 16, 4: 1 / 256, 8: 1 / 65536}
_SAMPLE = 1 << 16
# How close the finest step of layers is found, in powers of two, and how far below the
# plain coding an estimate must be.
_CAP_CLOSE, _CAP_ROOM = 1 / 16, 0.995
_LAYER_BYTES = 30  # what a layer takes in the header
# As many as a tensor has before its layers are known.
_LAYERS = 5


class LayeredSource(Source):
    """One tensor to be coded in bit planes, where it can be."""

    _step_bytes: ClassVar[int] = STEP_BYTES + _LAYERS * _LAYER_BYTES

    def codec_at(self, step: Step) -> str:
        """The codec at a step."""
        return "planes" if _planes.fits(step) else "lossless"

    def trellis_parts(self, step: Step | None, codec: str | None) -> Iterator[Part]:
        """None: layers are coded by themselves."""
        return iter(())

    def encoded(
        self, step: Step | None, codec: str | None, *, trellis: Blocks, told: Told
    ) -> EncodedTensor:
        """The layers down to a step or to the very bits, or exact and all at once."""
        if codec in ("lossless", "stored"):  # as a plan has found
            return self._plain(told)
        if step is None or not self.quantisable:
            return self._whole(told)
        found = self._shorter(self._layers(step, told, exact=False))
        return found or self._whole(told)

    @functools.cached_property
    def exact_bytes(self) -> int:
        """Bytes of the lossless coding without layers."""
        return count_lossless_bytes(self.array)

    @property
    def exact_cost_bytes(self) -> int:
        """About the bytes of the layers down to the very bits, less those in a header.

        The plain coding is shorter, but cannot be read in part.
        """
        return self._exact_cost

    @functools.cached_property
    def _exact_cost(self) -> int:
        plain = super().exact_cost_bytes
        if not self.quantisable:
            return plain
        if self.array.nbytes <= KEPT:
            coded = self.exact
            return plain if not coded.record.planes else _length(coded) - _LAYER_BYTES
        step = self._last_step
        inexact = None if step is None else self._estimate(step)
        if step is None or inexact is None or inexact.bytes >= plain:
            return plain
        some = self._some
        levels = to_levels(some, step)
        assert levels is not None  # its bytes were estimated
        values = _planes.reconstruct(levels, 0, step, some.dtype)
        rest = len(_planes.encode_residual(some, values)) * self.array.size / some.size
        return round(inexact.bytes + rest) + _LAYER_BYTES

    def cap_step(self, step: Step) -> Step:
        """The step, or the finest one where finer ones would leave no layers."""
        return step if self._cap is None else max(step, self._cap, key=_size)

    @functools.cached_property
    def _cap(self) -> Step | None:
        """The finest step whose layers are shorter than the plain coding, if one is."""
        fine, coarse = -60.0, 2.0  # in powers of two, beside the deviation
        cap = None
        while coarse - fine > _CAP_CLOSE:
            middle = (fine + coarse) / 2
            step = step_below(2**middle * self.rms)
            found = None if step is None else self._estimate(step)
            if found is None or found.bytes >= _CAP_ROOM * super().exact_cost_bytes:
                fine = middle
            else:
                coarse, cap = middle, step
        return cap

    @functools.cached_property
    def _some(self) -> np.ndarray:
        """Numbers from all over the tensor."""
        flat = self.array.reshape(-1)
        if flat.size > _SAMPLE:
            part = _SAMPLE // 8
            first = np.linspace(0, flat.size - part, 8).astype(np.intp)
            flat = np.concatenate([flat[i : i + part] for i in first])
        release(self.array)
        return flat

    def placeholder(self) -> EncodedTensor:
        """The tensor in a file, with nothing in its chunks."""
        plain = super().placeholder()
        if not self.quantisable:
            return plain
        layers = [
            Layer(
                0.00123 * (i + 1), 0.0123 * (i + 1), plain.record.digest[i:] + "0" * i
            )
            for i in range(_LAYERS)
        ]
        chunks = -(-self.array.size // BLOCK)
        record = dataclasses.replace(
            plain.record,
            codec="planes",
            planes=_LAYERS,
            layers=tuple(layers),
            norm=self.energy**0.5,
        )
        return dataclasses.replace(
            plain, record=record, blocks=(b"",) * (chunks * len(layers))
        )

    def _exactly(self, told: Told) -> EncodedTensor:
        if self.quantisable:
            step = self._last_step
            found = None if step is None else self._layers(step, told, exact=True)
            found = self._shorter(found)
            if found is not None:
                return found
        return self._plain(told)

    @property
    def _last_step(self) -> Step | None:
        """That of the last layer but the exact one."""
        return step_below(_FINEST[self.array.dtype.itemsize] * self.rms)

    def _plain(self, told: Told = lambda _: None) -> EncodedTensor:
        plain = super()._exactly(told)
        record = dataclasses.replace(plain.record, norm=self.energy**0.5)
        return dataclasses.replace(plain, record=record)

    def _shorter(self, found: EncodedTensor | None) -> EncodedTensor | None:
        """The layers, or all at once where that is no longer than the inexact ones."""
        if found is None:
            return None
        layers, planes = len(found.record.layers), found.record.planes
        inexact = found.blocks[: len(found.blocks) // layers * planes]
        length = STEP_BYTES + planes * _LAYER_BYTES + sum(map(len, inexact))
        return self._plain() if length >= self.exact_bytes else found

    def _estimate(self, step: Step) -> Point | None:
        """What a sample makes."""
        if not _planes.fits(step):
            return None
        some = self._some
        levels = to_levels(some, step)
        if levels is None or _planes.exceeds_range(levels, some.dtype):
            return None
        share = self.array.size / some.size
        error = Distortion.between(_quantised.to_values(levels, step, some.dtype), some)
        planes = _planes.count_planes(self.rms, step)
        bytes_ = share * _planes.estimate_layer_bytes(levels, planes)
        bytes_ += _LAYER_BYTES * planes - self._step_bytes
        return Point(bytes_, share * error.energy)

    def _layers(
        self, step: Step, told: Told, *, exact: bool, planes: int | None = None
    ) -> EncodedTensor | None:
        """Every layer of every chunk; None where some number is too large for it."""
        if not _planes.fits(step):
            return None
        planes = planes or _planes.count_planes(self.rms, step)
        count = planes + exact
        blocks: list[list[bytes]] = [[] for _ in range(count)]
        errors = [Distortion() for _ in range(count)]
        digests = [Digest() for _ in range(count)]
        dtype, at = self.array.dtype, 0
        for part in self._parts():
            levels = to_levels(part, step)
            if levels is None or _planes.exceeds_range(levels, dtype):
                return None
            for layer, block in enumerate(_planes.split(levels, planes)):
                blocks[layer].append(block)
            values = part
            for layer in range(planes):
                shift = planes - 1 - layer
                known = np.sign(levels) * (np.abs(levels) >> shift)
                values = _planes.reconstruct(known, shift, step, dtype)
                if not np.isfinite(values).all():  # the middle of a cell is too large
                    left = planes - layer - 1
                    return (
                        self._layers(step, told, exact=exact, planes=left)
                        if left
                        else None
                    )
                errors[layer] += Distortion.between(values, part)
                digests[layer].update(values)
            if exact:
                blocks[-1].append(_planes.encode_residual(part, values))
                digests[-1].update(part)
            at += part.size
            told(at)
        record = self._record("planes", step, digests[-1].hexdigest(), errors[-1])
        found = EncodedTensor(
            self._layered(record, planes, errors, [d.hexdigest() for d in digests]),
            tuple(block for layer in blocks for block in layer),
            errors[-1],
        )
        worse = [i for i in range(1, planes) if errors[i].energy > errors[i - 1].energy]
        if worse:  # one layer in place of all up to there, unless digits get dearer
            joined = self._layers(step, told, exact=exact, planes=planes - worse[-1])
            if joined is not None and _length(joined) <= _length(found):
                return joined
        return found

    def _layered(
        self, record: Record, planes: int, errors: list[Distortion], digests: list[str]
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


def _length(coded: EncodedTensor) -> int:
    layers = len(coded.record.layers) * _LAYER_BYTES
    return layers + sum(map(len, coded.blocks))


def _size(step: Step) -> float:
    return step.size
