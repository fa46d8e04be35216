"""`ExactCoding`: the lossless coding of a tensor, and its length before it is made."""

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np

from ..arrays import Distortion, Tensor, relative_error, release, round_up
from ..codecs import BLOCK, Step, lossless
from ..container import Digest, EncodedTensor, Record

# Called with how many numbers of a tensor are done.
CountProgress = Callable[[int], object]
_KEPT = 1 << 16  # bytes of a tensor whose coding is kept: it is asked for often
_PIECE = lossless.PART // 8  # numbers of a piece of a sample


class ExactCoding:
    """The lossless coding of a tensor.

    The length of a large one is counted as far as is asked for.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._array = tensor, tensor.array
        self._is_kept = tensor.array.nbytes <= _KEPT
        self._lengths = self._count_parts()
        self._counted = 0

    def encode(self, progress: CountProgress) -> EncodedTensor:
        """Code the tensor."""
        return self._kept if self._is_kept else self._encode(progress)

    @functools.cached_property
    def bytes(self) -> int:
        """Its length; a sample would not show repetitions."""
        if self._is_kept:
            return sum(map(len, self._kept.blocks))
        self._counted += sum(self._lengths)
        return int(min(self._most_bytes, self._counted))

    def exceeds(self, limit: int) -> bool:
        """Whether its length is above a limit, without coding more than shows it."""
        if self._is_kept:
            return self.bytes > limit
        while self._counted <= limit < self._most_bytes:
            length = next(self._lengths, None)
            if length is None:
                return False
            self._counted += length
        return limit < self._most_bytes

    @functools.cached_property
    def estimated_bytes(self) -> float:
        """About its length, from some pieces of a large tensor."""
        flat = self._array.reshape(-1)
        if self._is_kept or flat.size <= 8 * _PIECE:
            return self.bytes
        starts = np.linspace(0, flat.size - _PIECE, 4).astype(np.intp)
        coded = sum(len(lossless.encode(flat[at : at + _PIECE])) for at in starts)
        release(self._array)
        return min(self._array.nbytes, coded / (4 * _PIECE) * flat.size)

    @property
    def _most_bytes(self) -> float:
        # One block is stored as it is, at worst.
        return self._array.nbytes if self._array.size <= BLOCK else math.inf

    def _blocks(self) -> Iterator[np.ndarray]:
        flat = self._array.reshape(-1)
        for i in range(0, len(flat), BLOCK):
            yield flat[i : i + BLOCK]
            release(flat[i : i + BLOCK])

    def _count_parts(self) -> Iterator[int]:
        for block in self._blocks():
            yield from map(len, lossless.encode_parts(block))

    @functools.cached_property
    def _kept(self) -> EncodedTensor:
        return self._encode(lambda _: None)

    def _encode(self, progress: CountProgress) -> EncodedTensor:
        codec, array = "lossless", self._array
        blocks: list[bytes] = []
        digest = Digest()
        for block in self._blocks():
            blocks.append(lossless.encode(block))
            digest.update(block)
            progress(min(array.size, len(blocks) * BLOCK))
        # Several blocks are always lossless, at worst 0.01% longer, so that writing one
        # need not wait for the next.
        if len(blocks) < 2 and sum(map(len, blocks)) >= array.nbytes:
            codec, blocks = "stored", [array.tobytes()] * len(blocks)
        error = Distortion()
        record = make_record(self._tensor, codec, None, digest.hexdigest(), error)
        return EncodedTensor(record, tuple(blocks), error)


def make_record(
    tensor: Tensor, codec: str, step: Step | None, digest: str, error: Distortion
) -> Record:
    """Return the entry of a coded tensor, without its chunks."""
    return Record(
        name=tensor.name,
        dtype=tensor.array.dtype.name,
        shape=tensor.array.shape,
        codec=codec,
        step=step,
        rel_error=round_up(relative_error(error.energy, tensor.energy)),
        max_abs=round_up(error.max_abs),
        digest=digest,
        chunks=(),
    )
