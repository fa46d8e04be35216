"""`Draft`: a candidate `.fxz` file in a temporary place, with its length and errors."""

import contextlib
import dataclasses
import io
import math
import mmap
from collections.abc import Callable, Sequence

import numpy as np

from frugax.budget import SizeBudget

from ..arrays import Distortion, relative_error
from ..codecs import Step
from ..container import CompressedFile, Record
from ._source import Source

# The step to quantise a tensor with; None to keep it exact.
Steps = Callable[[Source], Step | None]
_PIECE = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Draft:
    """A whole file, and the tensors that it was made from.

    Attributes:
        length: of the file, in bytes.
        tensors: the record of each tensor, those of ties among them.
        errors: how far each source is from its original.
        sources: the originals, without ties.
        gap: by how much, as a share, the weighted error is at most above the least that
            any choice of the same options has, by estimate; None where steps were not
            chosen one by one.
    """

    length: int
    tensors: tuple[Record, ...]
    errors: tuple[Distortion, ...]
    sources: tuple[Source, ...]
    gap: float | None
    _file: io.BufferedIOBase

    @property
    def rel_error(self) -> float:
        """||decoded - original|| / ||original|| over all finite float tensors."""
        error = math.fsum(error.energy for error in self.errors)
        return relative_error(error, math.fsum(s.energy for s in self.sources))

    @property
    def max_abs(self) -> float:
        """Largest |decoded - original| of any number."""
        return max((error.max_abs for error in self.errors), default=0.0)

    def data(self) -> bytes:
        """Return the bytes of the file."""
        self._file.seek(0)
        return self._file.read()

    def copy_to(self, write: Callable[[bytes], object]) -> None:
        """Copy the file into another by the other file's `write` method."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            write(piece)

    def arrays(self) -> dict[str, np.ndarray]:
        """Decode every tensor, by name."""
        with self.open() as file:
            return {name: np.array(values) for name, values in file.items()}

    def open(self) -> contextlib.AbstractContextManager[CompressedFile]:
        """Open the file to read it back."""
        # Not annotated as a mapping: a runtime type checker would decode an item of it.
        self._file.flush()
        if isinstance(self._file, io.BytesIO):
            content = self._file.getvalue()
        else:
            # Mapped, so that reading a draft back takes no more memory than writing it
            # did.
            content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return CompressedFile(content, place="the file just made")


def limit_bytes(sources: Sequence[Source], budget: SizeBudget) -> int | None:
    """Return the longest file that the budget allows for these tensors, if any."""
    return budget.limit_bytes(
        original_bytes=sum(s.array.nbytes for s in sources),
        weights=sum(s.array.size for s in sources),
    )
