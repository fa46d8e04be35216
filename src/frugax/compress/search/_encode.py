"""Code tensors at their steps: every form that suits, of which the shortest is kept.

The bytes of a tensor depend on nothing but the tensor, its step and its form.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..arrays import Distortion, release
from ..codecs import (
    CodedBlocks,
    Form,
    Step,
    encode_grid,
    grid,
    numbers_per_chunk,
    split_chunks,
)
from ..container import Digest, EncodedTensor, compute_digest
from ._exact import CountProgress, make_record
from ._source import STEP_BYTES, UNIFORM, Source


@dataclasses.dataclass(frozen=True)
class EncodeRequest:
    """A tensor to be coded.

    Attributes:
        source: the tensor.
        step: None for the exact coding.
        form: of the integers, only this one; by default those that suit.
    """

    source: Source
    step: Step | None
    form: Form | None = None

    def list_forms(self) -> list[tuple[Step, Form]]:
        """Return the step with each form to try: none if the tensor stays exact."""
        source, step = self.source, self.step
        if step is None or not source.energy or source.tiny:
            return []
        forms = [self.form or source.form_at(step)]
        if self.form is None and forms == [Form()] and source.tries_both:
            forms.append(UNIFORM)
        return [(step, form) for form in forms]


def encode_all(
    requests: Sequence[EncodeRequest], progress: CountProgress
) -> Iterator[EncodedTensor]:
    """Yield the shortest coding of each tensor, in order."""
    blocks = encode_grid(part for request in requests for part in _grid_inputs(request))
    for request in requests:
        yield _encode_tensor(request, blocks, progress)


def _grid_inputs(request: EncodeRequest) -> Iterator[grid.GridInput]:
    """Yield the chunks that `_encode_tensor` needs coded."""
    source = request.source
    for step, form in request.list_forms():
        scaling = source.scaling if form.scaled or form.columns else None
        yield from split_chunks(source.array, step, scaling, trellis=form.trellis)


def _encode_tensor(
    request: EncodeRequest, blocks: CodedBlocks, progress: CountProgress
) -> EncodedTensor:
    """Return the shortest coding at a step; the exact one if that is as short."""
    source = request.source
    coded = (
        _encode_stepped(source, form, step, blocks, progress)
        for step, form in request.list_forms()
    )
    options = [option for option in coded if option is not None]
    if options:
        best = min(options, key=lambda e: (sum(map(len, e.blocks)), e.record.codec))
        if source.exact.exceeds(sum(map(len, best.blocks)) + STEP_BYTES):
            return best
    return source.exact.encode(progress)


def placeholder(source: Source) -> EncodedTensor:
    """Return the tensor with empty chunks, to measure the length of the header."""
    stepped = source.quantisable
    codec = str(Form()) if stepped else "lossless"
    # Steps, digests and errors that compress like real ones, different for each.
    step = Step(1024 + len(source.name) * 37 % 1024, -20) if stepped else None
    digest = compute_digest(np.frombuffer(source.name.encode(), np.uint8))
    error = Distortion(source.energy * 0.00123, 0.0123)
    chunks = -(-source.array.size // numbers_per_chunk(codec, source.array.shape))
    record = make_record(source, codec, step, digest, error)
    return EncodedTensor(record, (b"",) * chunks, error)


def _encode_stepped(
    source: Source, form: Form, step: Step, blocks: CodedBlocks, progress: CountProgress
) -> EncodedTensor | None:
    """Make the tensor of the next chunks; None if some number is too large.

    All chunks of the tensor are taken from `blocks`, even then.
    """
    flat, codec = source.array.reshape(-1), str(form)
    chunks = -(-flat.size // numbers_per_chunk(codec, source.array.shape))
    kept: list[bytes] = []
    error, digest, start = Distortion(), Digest(), 0
    for coded in itertools.islice(blocks, chunks):
        if coded is None:
            continue
        block, values = coded
        if form.columns:
            row = math.prod(source.array.shape[1:])
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
    record = make_record(source, codec, step, digest.hexdigest(), error)
    return EncodedTensor(record, tuple(kept), error)
