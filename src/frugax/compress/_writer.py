"""Writing an `.fxz` file tensor by tensor, in one pass and in little memory.

Writing is deterministic: the same tensors and steps give the same bytes, whatever the
day or the machine (and the same zstd library).
"""

import dataclasses
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import zstandard

from ._container import ALIGN, PRELUDE, tail_of
from ._header import FREE_BYTES, MOST_RATIO
from ._records import Chunk, Encoded, Record


class ContainerWriter:
    """Writes tensors as they come; what the file says of them stands behind them.

    Whether the file is there whole or not at all is up to who opened it: use
    `frugax.fileio.atomic_write`.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        """Start a file.

        Args:
            write: puts bytes behind those before: the method of an open, empty file.
        """
        self._append = write
        self._sum = hashlib.sha256()
        self._at = -len(PRELUDE)  # from the start of the data
        self._records: list[Record] = []
        self._write(PRELUDE)

    def add(self, record: Record, blocks: Iterable[bytes]) -> Record:
        """Write the next tensor.

        Args:
            record: what the header will say of it; its chunks are filled in.
            blocks: its coded bytes, one piece for each chunk.

        Returns:
            The record, with its chunks.
        """
        chunks = self.put(blocks, aligned=record.codec == "stored")
        return self.keep(dataclasses.replace(record, chunks=chunks))

    def put(self, blocks: Iterable[bytes], *, aligned: bool) -> tuple[Chunk, ...]:
        """Write the chunks of a tensor of which more is known only afterwards.

        Args:
            blocks: its coded bytes, one piece for each chunk; each is written before
                the next is asked for.
            aligned: start at a multiple of 64, so that a mapped file can be used as
                it is.
        """
        if aligned:
            self._write(bytes(-self._at % ALIGN))
        chunks: list[Chunk] = []
        for block in blocks:
            chunks.append(Chunk(self._at, len(block), zlib.crc32(block)))
            self._write(block)
        return tuple(chunks)

    def keep(self, record: Record) -> Record:
        """Enter a tensor whose chunks `put` has written, in the tree's order."""
        self._records.append(record)
        return record

    def close(self, head: Mapping[str, Any]) -> int:
        """Write the header and the footer; the file itself stays open.

        Args:
            head: what the header says beside the tensors, such as `structure`.

        Returns:
            The length of the file in bytes.
        """
        decoded = sum(record.nbytes for record in self._records)
        if decoded > FREE_BYTES:
            self._write(bytes(max(0, -(-decoded // MOST_RATIO) - self._at)))
        header = _canonical_json(
            {**head, "tensors": [*map(_record_plain, self._records)]}
        )
        packed = zstandard.ZstdCompressor(level=19).compress(header)
        self._write(tail_of(packed, len(header), before=self._at + len(PRELUDE)))
        self._write(self._sum.digest())
        return self._at + len(PRELUDE)

    def _write(self, data: bytes) -> None:
        self._append(data)
        self._sum.update(data)
        self._at += len(data)


def write(head: Mapping[str, Any], tensors: Sequence[Encoded]) -> bytes:
    """The whole file as bytes."""
    file = io.BytesIO()
    writer = ContainerWriter(file.write)
    for tensor in tensors:
        writer.add(tensor.record, tensor.blocks)
    writer.close(head)
    return file.getvalue()


def _canonical_json(data: Any) -> bytes:
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def _record_plain(record: Record) -> dict[str, Any]:
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
    if record.planes:
        plain["planes"] = record.planes
        plain["layers"] = [[x.rel_error, x.max_abs, x.digest] for x in record.layers]
    if record.norm is not None:
        plain["norm"] = record.norm
    return plain
