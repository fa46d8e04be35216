"""Data types of the `.fxz` header: how and where each tensor is stored, its digest."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays import Distortion, dtype_from_name
from ..codecs import Form, Step, find_form

# The codecs of exact tensors; those of integers times a step are forms.
EXACT = ("lossless", "stored")


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """The place of one coded block in the data, in bytes, and its CRC."""

    offset: int
    length: int
    crc32: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The entry of one tensor in the header.

    Attributes:
        name: the leaf's name in the tree.
        dtype: the name of its dtype.
        shape: its shape.
        codec: `"lossless"`, `"stored"`, or the text of a form of integers.
        step: the unit that the values are multiples of, perhaps times a scale of each
            row or column; None if they are exact.
        rel_error: ||decoded - original|| / ||original||, rounded up to 4 digits.
        max_abs: largest |decoded - original|, rounded up to 4 digits.
        digest: first 16 bytes of the SHA-256 of the decoded little-endian
            bytes, in hex.
        chunks: the coded blocks in the order of the numbers.
        tied: the name of the tensor whose chunks these are; empty if its own.
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
    tied: str = ""

    @property
    def form(self) -> Form | None:
        """The form of the integers; None if the tensor is exact."""
        return find_form(self.codec)

    @property
    def size(self) -> int:
        """How many numbers the tensor has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded tensor."""
        return self.size * dtype_from_name(self.dtype).itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file, without header and padding; those of a tie count once."""
        if self.tied:
            return 0
        return sum(chunk.length for chunk in self.chunks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of a file.

    Attributes:
        structure: how the tree is built; see `frugax.trees.describe`.
        tensors: one record for each leaf, in the tree's order.
        data_bytes: length of the data.
        metadata: the user's words by key, such as those of a `.safetensors` file.
    """

    structure: Any
    tensors: tuple[Record, ...]
    data_bytes: int
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedTensor:
    """One tensor, ready to be written.

    Attributes:
        record: its entry in the header, still without chunks.
        blocks: its coded bytes, one for each chunk.
        error: how far the decoded values are from the originals.
    """

    record: Record
    blocks: tuple[bytes, ...]
    error: Distortion


class Digest:
    """The first 16 bytes of a SHA-256, fed array by array.

    Processors have instructions for SHA-256 and none for BLAKE2, which takes twice as
    long on them. 16 bytes are more than chance or damage will ever match.
    """

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def update(self, values: np.ndarray) -> None:
        """Feed the next values, flat, as they are in memory."""
        # Viewed as bytes, since Python's buffers have no format for bfloat16.
        self._sum.update(values.view(np.uint8).data)

    def hexdigest(self) -> str:
        """Return the digest so far as 32 hexadecimal digits."""
        return self._sum.hexdigest()[:32]


def compute_digest(values: np.ndarray) -> str:
    """Return the digest of a flat array."""
    digest = Digest()
    digest.update(values)
    return digest.hexdigest()
