"""Write an `.fxz` file tensor by tensor, in one pass and in little memory.

Writing is deterministic: the same tensors and steps give the same bytes, whatever the
day or the machine (and the same zstd library).
"""

import dataclasses
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..codecs import compress_frame
from ._header import FREE_BYTES, MAX_RATIO
from ._layout import ALIGN, PRELUDE, pack_tail
from ._metadata import Chunk, EncodedTensor, Record

# The place of a tied tensor in the tree, its name, and the one that it is tied to.
Ties: TypeAlias = Sequence[tuple[int, str, str]]


class ContainerWriter:
    """Write the chunks of tensors as they come; the header stands behind them.

    The caller makes the file whole or absent: use `frugax.fileio.atomic_write`.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        """Start a file."""
        self._write_bytes = write
        self._position = -len(PRELUDE)  # from the start of the data
        self._records: list[Record] = []
        self._append(PRELUDE)

    def add(self, tensor: EncodedTensor) -> None:
        """Write the next tensor, in the tree's order."""
        if tensor.record.codec == "stored":
            self._append(bytes(-self._position % ALIGN))
        chunks: list[Chunk] = []
        for block in tensor.blocks:
            chunks.append(Chunk(self._position, len(block), zlib.crc32(block)))
            self._append(block)
        record = dataclasses.replace(tensor.record, chunks=tuple(chunks))
        self._records.append(record)

    def close(
        self, head: Mapping[str, Any], ties: Ties = ()
    ) -> tuple[int, tuple[Record, ...]]:
        """Write the header and the footer; the file itself stays open.

        Returns:
            The length of the file, and the records of all tensors.
        """
        records = list(self._records)
        by_name = {record.name: record for record in records}
        for at, name, other in sorted(ties):
            tied = dataclasses.replace(by_name[other], name=name, tied=other)
            records.insert(at, tied)
        decoded = sum(record.nbytes for record in records)
        if decoded > FREE_BYTES:  # readers refuse a file that shrinks more
            self._append(bytes(max(0, -(-decoded // MAX_RATIO) - self._position)))
        header = _canonical_json({**head, "tensors": [*map(_to_plain, records)]})
        # The header repeats its keys for each tensor, and is short: level 19 pays.
        packed = compress_frame(header)
        before = self._position + len(PRELUDE)
        tail = pack_tail(packed, len(header), before=before)
        self._append(tail)
        # The header has a checksum of each chunk.
        self._append(hashlib.sha256(PRELUDE + tail).digest())
        return self._position + len(PRELUDE), tuple(records)

    def _append(self, data: bytes) -> None:
        self._write_bytes(data)
        self._position += len(data)


def write(head: Mapping[str, Any], tensors: Sequence[EncodedTensor]) -> bytes:
    """Return a whole file of tensors as bytes."""
    file = io.BytesIO()
    writer = ContainerWriter(file.write)
    for tensor in tensors:
        writer.add(tensor)
    writer.close(head)
    return file.getvalue()


def _canonical_json(data: Any) -> bytes:
    # Sorted keys and no spaces: equal headers are equal bytes.
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def _to_plain(record: Record) -> dict[str, Any]:
    if record.tied:
        return {"name": record.name, "tied": record.tied}
    plain: dict[str, Any] = {
        "chunks": [[c.offset, c.length, c.crc32] for c in record.chunks],
        "codec": record.codec,
        "digest": record.digest,
        "dtype": record.dtype,
        "name": record.name,
        "shape": list(record.shape),
    }
    if record.step is not None:
        plain["step"] = [record.step.mantissa, record.step.exponent]
        plain["rel_error"] = record.rel_error
        plain["max_abs"] = record.max_abs
    return plain
