"""What a file says of itself, tensor by tensor. The words are in docs/container.md."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays._error import Distortion
from ..arrays._leaves import dtype_from_name
from ..codecs._uniform import Step

CODECS = ("lossless", "planes", "quantised", "stored", "trellis")
# Codecs whose values are whole numbers times a step.
STEPPED = ("planes", "quantised", "trellis")


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Where one coded block stands: bytes from the start of the data, and its CRC."""

    offset: int
    length: int
    crc32: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """What a tensor is once this layer of it is read, and all before.

    Attributes:
        rel_error: ||decoded - original|| / ||original||, rounded up to 4 digits.
        max_abs: largest |decoded - original|, rounded up to 4 digits.
        digest: first 16 bytes of the SHA-256 of the decoded little-endian
            bytes, in hex.
    """

    rel_error: float
    max_abs: float
    digest: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the header says of one tensor.

    Attributes:
        name: the leaf's name in the tree.
        dtype: one of `DTYPE_NAMES`.
        shape: its shape.
        codec: one of `CODECS`.
        step: what the values are multiples of; None if they are exact.
        rel_error: ||decoded - original|| / ||original||, rounded up to 4 digits.
        max_abs: largest |decoded - original|, rounded up to 4 digits.
        digest: first 16 bytes of the SHA-256 of the decoded little-endian
            bytes, in hex.
        chunks: one for every `numbers_per_chunk`, the last perhaps shorter; with the
            codec `"planes"` such a row of them for each layer.
        planes: how many bit planes `"planes"` has; 0 with any other codec.
        layers: one for each plane, and one more where the last makes it exact.
        norm: ||original|| of a finite float tensor in a progressive file; else None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    step: Step | None
    rel_error: float
    max_abs: float
    digest: str
    chunks: tuple[Chunk, ...]
    planes: int = 0
    layers: tuple[Layer, ...] = ()
    norm: float | None = None

    def truncate(self, layers: int) -> "Record":
        """The tensor as it is when only so many of its layers are read; >= 1."""
        last, each = self.layers[layers - 1], len(self.chunks) // len(self.layers)
        return dataclasses.replace(
            self,
            rel_error=last.rel_error,
            max_abs=last.max_abs,
            digest=last.digest,
            chunks=self.chunks[: layers * each],
            layers=self.layers[:layers],
        )

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes once decoded."""
        return self.size * dtype_from_name(self.dtype).itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file, without header and padding."""
        return sum(chunk.length for chunk in self.chunks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says of itself.

    Attributes:
        structure: how the tree is built; see `frugax.trees.describe`.
        tensors: one record for each leaf, in the tree's order.
        data_bytes: length of the data.
        metadata: words of its user's, by key; those of a `.safetensors` file it was.
    """

    structure: Any
    tensors: tuple[Record, ...]
    data_bytes: int
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedTensor:
    """One tensor, ready to be written.

    Attributes:
        record: what the header will say of it; without chunks.
        blocks: its coded bytes, one for each `numbers_per_chunk`; layer by layer.
        error: how far its decoded values are from the original ones.
    """

    record: Record
    blocks: tuple[bytes, ...]
    error: Distortion


class Digest:
    """The first 16 bytes of a SHA-256, fed array by array.

    Processors have instructions for SHA-256 and none for BLAKE2, which takes twice as
    long on them. 16 bytes are more than chance or damage will ever meet.
    """

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def update(self, values: np.ndarray) -> None:
        """Feed the next values, flat, as they are in memory."""
        self._sum.update(values.view(np.uint8).data)

    def hexdigest(self) -> str:
        """What was fed so far, in 32 letters."""
        return self._sum.hexdigest()[:32]


def compute_digest(values: np.ndarray) -> str:
    """The digest of a flat array."""
    digest = Digest()
    digest.update(values)
    return digest.hexdigest()
