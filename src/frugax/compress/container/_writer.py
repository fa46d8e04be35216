"""Writing an `.fxz` file tensor by tensor, in one pass and in little memory.

Writing is deterministic: the same tensors and steps give the same bytes, whatever the
day or the machine (and the same zstd library).
"""

import dataclasses
import hashlib
import heapq
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import zstandard

from ._header import FREE_BYTES, MOST_RATIO
from ._layout import ALIGN, PRELUDE, pack_tail
from ._metadata import Chunk, EncodedTensor, Record


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
        self._write(pack_tail(packed, len(header), before=self._at + len(PRELUDE)))
        self._write(self._sum.digest())
        return self._at + len(PRELUDE)

    def _write(self, data: bytes) -> None:
        self._append(data)
        self._sum.update(data)
        self._at += len(data)


def write(head: Mapping[str, Any], tensors: Sequence[EncodedTensor]) -> bytes:
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


class Assembly:
    """A file that tensors are put into, in the order of the tree.

    Args:
        file: empty, and open to be written.
        later: an empty temporary file, for the layers that stand further behind.
    """

    def __init__(self, file: io.BufferedIOBase, later: io.BufferedIOBase) -> None:
        self._writer = ContainerWriter(file.write)
        self._later = later
        self._records: list[Record] = []
        self._chunks: list[tuple[Chunk, ...]] = []
        # For each tensor: where its finer layers begin, and the lengths of each one's
        # chunks.
        self._finer: list[tuple[int, list[list[int]]]] = []

    def add(self, coded: EncodedTensor) -> None:
        """Write the next tensor, or its first layer."""
        record, blocks = coded.record, coded.blocks
        each = len(blocks) // max(1, len(record.layers))
        aligned = record.codec == "stored"
        self._chunks.append(self._writer.put(blocks[:each], aligned=aligned))
        self._records.append(record)
        lengths = [len(block) for block in blocks[each:]]
        # An empty tensor has no chunks at all.
        layers = [lengths[i : i + each] for i in range(0, len(lengths), each or 1)]
        self._finer.append((self._later.tell(), layers))
        for block in blocks[each:]:
            self._later.write(block)

    def close(
        self, head: Mapping[str, Any], weights: Mapping[str, float]
    ) -> tuple[int, tuple[Record, ...]]:
        """Write the finer layers and the header.

        Args:
            head: what the header says beside the tensors, such as `structure`.
            weights: what a squared error is worth, for every tensor that has layers.

        Returns:
            The length of the file in bytes, and each tensor as it stands in it.
        """
        at = [start for start, _ in self._finer]
        for i, layer in self._order(weights):
            lengths = self._finer[i][1][layer]
            self._later.seek(at[i])
            blocks = (self._later.read(length) for length in lengths)
            self._chunks[i] += self._writer.put(blocks, aligned=False)
            at[i] += sum(lengths)
        records = tuple(
            self._writer.keep(dataclasses.replace(record, chunks=chunks))
            for record, chunks in zip(self._records, self._chunks, strict=True)
        )
        return self._writer.close(head), records

    def _order(self, weights: Mapping[str, float]) -> Iterator[tuple[int, int]]:
        """Tensors and their finer layers, the worthiest first."""

        def entry(i: int, layer: int) -> tuple[float, int, int]:
            record = self._records[i]
            before, after = record.layers[layer], record.layers[layer + 1]
            gain = before.rel_error**2 - after.rel_error**2
            worth = weights[record.name] * (record.norm or 0.0) ** 2 * gain
            return -worth / sum(self._finer[i][1][layer]), i, layer

        waiting = [entry(i, 0) for i, (_, layers) in enumerate(self._finer) if layers]
        heapq.heapify(waiting)
        while waiting:
            _, i, layer = heapq.heappop(waiting)
            yield i, layer
            if layer + 1 < len(self._finer[i][1]):
                heapq.heappush(waiting, entry(i, layer + 1))
