"""`ExactCoding`: the lossless coding of a tensor, and its length before it is made."""

import functools
from collections.abc import Callable

from ..arrays import Distortion, Tensor, relative_error, round_up
from ..codecs import LosslessLength, Step, encode_lossless, estimate_lossless_bytes
from ..container import Digest, EncodedTensor, Record

# Called with how many numbers of a tensor are done.
CountProgress = Callable[[int], object]
_KEPT = 1 << 16  # bytes of a tensor whose coding is kept: it is asked for often


class ExactCoding:
    """The lossless coding of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._is_kept = tensor.array.nbytes <= _KEPT

    def encode(self, progress: CountProgress) -> EncodedTensor:
        """Code the tensor."""
        return self._kept if self._is_kept else self._encode(progress)

    @functools.cached_property
    def bytes(self) -> int:
        """Its length; a sample would not show repetitions."""
        if self._is_kept:
            return sum(map(len, self._kept.blocks))
        return self._length.total()

    def exceeds(self, limit: int) -> bool:
        """Whether its length is above a limit, without coding more than shows it."""
        return self.bytes > limit if self._is_kept else self._length.exceeds(limit)

    @functools.cached_property
    def estimated_bytes(self) -> float:
        """About its length, from a sample of a large tensor."""
        if self._is_kept:
            return self.bytes
        return estimate_lossless_bytes(self._tensor.array)

    @functools.cached_property
    def _length(self) -> LosslessLength:
        return LosslessLength(self._tensor.array)

    @functools.cached_property
    def _kept(self) -> EncodedTensor:
        return self._encode(lambda _: None)

    def _encode(self, progress: CountProgress) -> EncodedTensor:
        codec, blocks = encode_lossless(self._tensor.array, progress)
        digest = Digest()
        for part in self._tensor.parts():
            digest.update(part)
        error = Distortion()
        record = make_record(self._tensor, codec, None, digest.hexdigest(), error)
        return EncodedTensor(record, blocks, error)


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
