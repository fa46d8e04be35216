"""Write an `.fxz` file tensor by tensor, in one pass and in little memory.

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
        self._append(PRELUDE)

    def write_chunks(
        self, blocks: Iterable[bytes], *, aligned: bool
    ) -> tuple[Chunk, ...]:
        """Write chunks of one tensor."""
        if aligned:
            self._append(bytes(-self._position % ALIGN))
        chunks: list[Chunk] = []
        for block in blocks:
            chunks.append(Chunk(self._position, len(block), zlib.crc32(block)))
            self._append(block)
        return tuple(chunks)

    def close(
        self, head: Mapping[str, Any], records: Sequence[Record], ties: Ties = ()
    ) -> int:
        """Write the header and the footer; the file itself stays open."""
        decoded = sum(record.nbytes for record in records)
        nbytes = {record.name: record.nbytes for record in records}
        decoded += sum(nbytes[other] for _, _, other in ties)
        if decoded > FREE_BYTES:  # readers refuse a file that shrinks more
            self._append(bytes(max(0, -(-decoded // MAX_RATIO) - self._position)))
        tensors = [*map(_to_plain, records)]
        for at, name, other in sorted(ties):
            tensors.insert(at, {"name": name, "tied": other})
        header = _canonical_json({**head, "tensors": tensors})
        # The header repeats its keys for each tensor, and is short: level 19 pays.
        packed = compress_frame(header)
        before = self._position + len(PRELUDE)
        tail = pack_tail(packed, len(header), before=before)
        self._append(tail)
        # The header has a checksum of each chunk.
        self._append(hashlib.sha256(PRELUDE + tail).digest())
        return self._position + len(PRELUDE)

    def _append(self, data: bytes) -> None:
        self._write_bytes(data)
        self._position += len(data)


class LayeredWriter:
    """Write tensors in the tree's order, their finer layers behind all of them.

    The finer layers of all tensors stand in the order of their worth: the weighted
    squared error that a layer removes, for each of its bytes. So the best that can be
    read in a given number of bytes is a prefix of the file.

    Args:
        file: empty, and open for writing.
        later: an empty temporary file, for the layers that stand further behind.
    """

    def __init__(self, file: io.BufferedIOBase, later: io.BufferedIOBase) -> None:
        self._writer = ContainerWriter(file.write)
        self._later = later
        self._records: list[Record] = []
        self._chunks: list[tuple[Chunk, ...]] = []
        # For each tensor: where its finer layers begin in `later`, and the lengths of
        # the chunks of each.
        self._finer: list[tuple[int, list[list[int]]]] = []

    def add(self, tensor: EncodedTensor) -> None:
        """Write the next tensor, or its first layer."""
        record, blocks = tensor.record, tensor.blocks
        each = len(blocks) // max(1, len(record.layers))
        aligned = record.codec == "stored"
        self._chunks.append(self._writer.write_chunks(blocks[:each], aligned=aligned))
        self._records.append(record)
        lengths = [len(block) for block in blocks[each:]]
        # An empty tensor has no chunks at all.
        layers = [lengths[i : i + each] for i in range(0, len(lengths), each or 1)]
        self._finer.append((self._later.tell(), layers))
        for block in blocks[each:]:
            self._later.write(block)

    def close(
        self, head: Mapping[str, Any], weights: Mapping[str, float], ties: Ties = ()
    ) -> tuple[int, tuple[Record, ...]]:
        """Write the finer layers and the header."""
        starts = [start for start, _ in self._finer]
        for i, layer in self._order_by_worth(weights):
            lengths = self._finer[i][1][layer]
            # The layers of a tensor lie in `later` in the order in which they leave the
            # heap.
            self._later.seek(starts[i])
            blocks = (self._later.read(length) for length in lengths)
            self._chunks[i] += self._writer.write_chunks(blocks, aligned=False)
            starts[i] += sum(lengths)
        records = tuple(
            dataclasses.replace(record, chunks=chunks)
            for record, chunks in zip(self._records, self._chunks, strict=True)
        )
        return self._writer.close(head, records, ties), records

    def _order_by_worth(
        self, weights: Mapping[str, float]
    ) -> Iterator[tuple[int, int]]:
        """Yield tensors and their finer layers, the most worth for a byte first."""

        def entry(i: int, layer: int) -> tuple[float, int, int]:
            record = self._records[i]
            before, after = record.layers[layer], record.layers[layer + 1]
            gain = before.rel_error**2 - after.rel_error**2
            worth = weights[record.name] * (record.norm or 0.0) ** 2 * gain
            # Greedy by slope, which is Lagrangian allocation (Everett 1963) wherever
            # the layers of a tensor have falling slopes. `heapq` pops the least, hence
            # the sign, and breaks ties by the tree's order, so that files are
            # deterministic.
            return -worth / sum(self._finer[i][1][layer]), i, layer

        # A layer enters the heap once the one before it is out: it needs it to decode.
        heap = [entry(i, 0) for i, (_, layers) in enumerate(self._finer) if layers]
        heapq.heapify(heap)
        while heap:
            _, i, layer = heapq.heappop(heap)
            yield i, layer
            if layer + 1 < len(self._finer[i][1]):
                heapq.heappush(heap, entry(i, layer + 1))


def write(head: Mapping[str, Any], tensors: Sequence[EncodedTensor]) -> bytes:
    """Return a whole file of tensors without finer layers, as bytes."""
    file = io.BytesIO()
    writer = ContainerWriter(file.write)
    records: list[Record] = []
    for tensor in tensors:
        aligned = tensor.record.codec == "stored"
        chunks = writer.write_chunks(tensor.blocks, aligned=aligned)
        records.append(dataclasses.replace(tensor.record, chunks=chunks))
    writer.close(head, records)
    return file.getvalue()


def _canonical_json(data: Any) -> bytes:
    # Sorted keys and no spaces: equal headers are equal bytes.
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def _to_plain(record: Record) -> dict[str, Any]:
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
