"""Write a candidate `.fxz` file to a temporary place, for its exact length and error.

Tensors are coded one by one, so neither the model nor the file need fit in memory.
"""

import contextlib
import dataclasses
import io
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from frugax.budget import SizeBudget
from frugax.errors import OutputError
from frugax.fileio import write_error_reason

from .._arguments import Progress
from ..arrays import Distortion, relative_error, release
from ..codecs import Form, Step
from ..container import CompressedFile, ContainerWriter, Record
from ._coder import Coder, EncodeRequest
from ._source import Source

# The step to quantise a tensor with; None to keep it exact.
Steps = Callable[[Source], Step | None]
# Drafts of fewer bytes of weights stay in memory.
_IN_MEMORY = 64 << 20
_PIECE = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Draft:
    """A whole file, and the tensors that it was made from.

    Attributes:
        length: of the file, in bytes.
        tensors: the record of each tensor.
        errors: how far each tensor is from its original.
        sources: the originals.
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


@contextlib.contextmanager
def _explain_full_disk() -> Iterator[None]:
    # Say where drafts stand, and how to move them, if they cannot be written.
    try:
        yield
    except OSError as e:
        try:
            folder = tempfile.gettempdir()
        except OSError:  # no folder is writeable, and `gettempdir` says so too
            folder = os.environ.get("TMPDIR", "a temporary file")
        raise OutputError(
            f"{write_error_reason(folder, e)} Drafts stand in the folder for temporary "
            "files: the environment variable TMPDIR names another."
        ) from e


@_explain_full_disk()
def make_draft(
    sources: tuple[Source, ...],
    head: Mapping[str, Any],
    steps: Steps,
    coder: Coder,
    *,
    form: Callable[[Source], Form | None] = lambda _: None,
    gap: float | None = None,
    progress: Progress | None = None,
) -> Draft:
    """Code all tensors with these steps into a temporary file."""
    total = max(1, sum(source.array.nbytes for source in sources))
    errors: list[Distortion] = []
    done = 0

    def report(numbers: int) -> None:
        if progress is not None:
            part = numbers * source.array.itemsize
            progress((done + part) / total, f"coding {source.name or 'the array'}")

    file = _open_temporary(total)
    try:
        writer = ContainerWriter(file.write)
        requests = [EncodeRequest(s, steps(s), form(s)) for s in sources]
        encoded = coder.encode(requests, report)
        for source in sources:
            report(0)
            tensor = next(encoded)
            release(source.array)
            writer.add(tensor)
            errors.append(tensor.error)
            done += source.array.nbytes
        ties = [(at, name, s.name) for s in sources for at, name in s.ties]
        length, records = writer.close(head, ties)
    # Also after Ctrl-C: the file has no name that anyone could delete, and fills the
    # disk until it is closed.
    except BaseException:
        file.close()
        raise
    draft = Draft(length, records, tuple(errors), sources, gap, file)
    # A draft is cached and passed on, so no `with` block spans its life: the file
    # closes with the last reference.
    weakref.finalize(draft, file.close)
    return draft


def _open_temporary(weights_bytes: int) -> io.BufferedIOBase:
    """Open a file in memory for few weights, else one on disk that has no name."""
    if weights_bytes <= _IN_MEMORY:
        return io.BytesIO()
    return cast(io.BufferedIOBase, tempfile.TemporaryFile())
