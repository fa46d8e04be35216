"""The arrays of one stream's column, as the journal packs them: for a scrubber."""

import dataclasses
from collections import OrderedDict

import numpy as np
from jaxtyping import Int64, Shaped

from ..journal import Column
from ._columns import Growing

# Packed bytes of one column that are held; beyond it the oldest blocks are let go.
MOST_BYTES = 256 * 2**20
_MOST_UNPACKED_BYTES = 64 * 2**20  # of blocks that stay open for a scrubber that moves


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
    first: int  # number of its first frame among all of the column
    column: Column
    packed_bytes: int


class Frames:
    """Every frame of a column that fits, by number; old ones give way to new ones."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._steps = Growing(np.dtype(np.int64))
        self._blocks: list[_Block] = []
        self._bytes = 0
        self._open: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def first(self) -> int:
        """The number of the oldest frame that is still held."""
        return self._blocks[0].first if self._blocks else len(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one frame."""
        return self._blocks[-1].column.shape if self._blocks else ()

    @property
    def dtype(self) -> str:
        """Of the frames."""
        return str(self._blocks[-1].column.dtype) if self._blocks else "-"

    @property
    def steps(self) -> Int64[np.ndarray, " n"]:
        """The step of every frame, held or let go."""
        return self._steps.array

    def append(self, steps: Int64[np.ndarray, " n"], column: Column) -> None:
        """Add frames behind the last one.

        Args:
            steps: of those records that have the column; at least one.
            column: theirs.
        """
        held = column.stored
        if isinstance(held, np.ndarray):
            size = held.nbytes
        else:
            # A view would keep alive all that was read of the file together with it.
            held = dataclasses.replace(held, body=bytes(held.body))
            column = dataclasses.replace(column, stored=held)
            size = len(held.body)
        self._blocks.append(_Block(len(self), column, size))
        self._steps.extend(steps)
        self._bytes += size
        while self._bytes > self._most_bytes and len(self._blocks) > 1:
            gone = self._blocks.pop(0)
            self._bytes -= gone.packed_bytes
            self._open.pop(gone.first, None)

    def cut(self, step: int) -> None:
        """Forget the frames after `step`."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        self._steps.cut(n)
        self._open.clear()
        while self._blocks and self._blocks[-1].first >= n:
            self._bytes -= self._blocks.pop().packed_bytes
        if self._blocks:
            last = self._blocks[-1]
            if last.first + len(last.column) > n:
                kept = dataclasses.replace(last.column, kept=n - last.first)
                self._blocks[-1] = dataclasses.replace(last, column=kept)

    def frame(self, number: int) -> Shaped[np.ndarray, "..."]:
        """One frame.

        Raises:
            LookupError: there is none of that number, or it was let go.
        """
        if not self.first <= number < len(self):
            raise LookupError(
                f"there is no frame {number}: {self.first} to {len(self) - 1} are held."
            )
        low, high = 0, len(self._blocks) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._blocks[middle].first <= number:
                low = middle
            else:
                high = middle - 1
        block = self._blocks[low]
        return self._unpacked(block)[number - block.first]

    def _unpacked(self, block: _Block) -> np.ndarray:
        found = self._open.pop(block.first, None)
        if found is None:
            found = block.column.values
        self._open[block.first] = found
        while (
            len(self._open) > 1
            and sum(a.nbytes for a in self._open.values()) > _MOST_UNPACKED_BYTES
        ):
            self._open.popitem(last=False)
        return found
