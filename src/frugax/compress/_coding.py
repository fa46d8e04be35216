"""Tensors coded for real, each as short as its step allows."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from ._codecs import trellis_blocks, trellis_parts, uniform_blocks
from ._container import Digest, Encoded, chunk_numbers
from ._error import Error
from ._quantised import Step
from ._sources import BOTH, Source

# The bytes of a chunk, and the values that they stand for; None if some number is too
# large for the codec.
_Blocks = Iterator[tuple[bytes, np.ndarray] | None]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A tensor to be coded.

    Attributes:
        source: the tensor.
        step: None for the exact coding.
        codec: only this one; by default what suits.
    """

    source: Source
    step: Step | None
    codec: str | None = None

    @property
    def codecs(self) -> dict[str, Step]:
        """What to try, and the step to try it with; nothing if it is exact."""
        if self.step is None or not self.source.energy:
            return {}
        codecs = {self.codec or self.source.codec_at(self.step)}
        if self.codec is None and self.source.array.size <= BOTH:
            codecs.add("quantised")
        return dict.fromkeys(sorted(codecs), self.step)


def encode_all(wanted: Sequence[Wanted]) -> Iterator[Encoded]:
    """The shortest coding of each at its step; the exact one if that is as short.

    One after the other, in order, but a few are worked on together.
    """
    trellis = trellis_blocks(
        part
        for each in wanted
        if (step := each.codecs.get("trellis")) is not None
        for part in trellis_parts(each.source.array, step)
    )
    for each in wanted:
        yield _shortest(each, trellis)


def _shortest(wanted: Wanted, trellis: _Blocks) -> Encoded:
    source = wanted.source
    coded: list[Encoded] = []
    for codec, step in wanted.codecs.items():
        blocks = trellis if codec == "trellis" else uniform_blocks(source.array, step)
        found = _stepped(source, codec, step, blocks)
        if found is not None:
            coded.append(found)
    if not coded:
        return source.exact
    best = min(coded, key=_length)
    length = _length(best)
    # Coding exactly takes its time: not where it is sure to be longer.
    if length < 0.8 * source.about_exact_bytes or length < source.exact_bytes:
        return best
    return source.exact


def _stepped(source: Source, codec: str, step: Step, blocks: _Blocks) -> Encoded | None:
    """The next chunks of `blocks`, as many as the tensor has."""
    flat = source.array.reshape(-1)
    chunks = -(-len(flat) // chunk_numbers(codec, source.array.shape))
    kept: list[bytes] = []
    error, digest, at, sound = Error(), Digest(), 0, True
    for found in islice(blocks, chunks):
        if found is None or not sound:
            sound = False  # the rest is taken off `blocks` all the same
        else:
            block, values = found
            kept.append(block)
            digest.update(values.view(np.uint8).data)
            error += Error.between(values, flat[at : at + len(values)])
            at += len(values)
    if not sound:
        return None
    record = source.record(codec, step, digest.hexdigest(), error)
    return Encoded(record, tuple(kept), error)


def _length(encoded: Encoded) -> int:
    return sum(map(len, encoded.blocks))
