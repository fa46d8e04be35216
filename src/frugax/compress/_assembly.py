"""Coded tensors into one file: what every reader needs first, finer layers behind.

The layers of all tensors stand in the order of what they are worth: the weighted
squared error that a layer takes away, for each of its bytes. So the best that can be
read in so many bytes is a prefix of the file.
"""

import dataclasses
import heapq
import io
from collections.abc import Iterator, Mapping
from typing import Any

from ._records import Chunk, Encoded, Record
from ._writer import ContainerWriter


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

    def add(self, coded: Encoded) -> None:
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
