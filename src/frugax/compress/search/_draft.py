"""A whole file in the making: what steps make of the tensors, and how far off it is.

Tensors are coded one after the other into a temporary file, so that neither the model
nor the file need be in memory.
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

from frugax.budget import SizeBudget
from frugax.errors import OutputError
from frugax.fileio import write_error_reason

from ..arrays._error import Distortion, relative_error
from ..arrays._mapped import release
from ..codecs._blocks import encode_trellis
from ..codecs._uniform import Step
from ..container._file import CompressedFile
from ..container._metadata import EncodedTensor, Record
from ..container._writer import Assembly
from ._error_weights import error_weights
from ._source import Source

# Which step to quantise a tensor with; None to keep it exact.
Steps = Callable[[Source], Step | None]
# Called with the share that is done, in [0, 1], and what is being done.
Progress = Callable[[float, str], None]
# Weights of fewer bytes are coded in memory.
_IN_MEMORY = 64 << 20
_PIECE = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Draft:
    """A whole file, and what it was made from.

    Attributes:
        length: of the file, in bytes.
        tensors: each tensor as it stands in it.
        errors: how far each is from what it was.
        sources: each tensor as it was.
        gap: by how much of it the weighted error is, by estimate, at most above the
            least that any choice of the same options has; None where steps were not
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
        """The bytes of the file."""
        self._file.seek(0)
        return self._file.read()

    def copy_to(self, write: Callable[[bytes], object]) -> None:
        """Write the file into another, with the method of that one."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            write(piece)

    def opened(self) -> contextlib.AbstractContextManager[CompressedFile]:
        """The file, to be read back."""
        self._file.flush()
        if isinstance(self._file, io.BytesIO):
            content = self._file.getvalue()
        else:
            content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return CompressedFile(content, place="the file just made")


def limit_bytes(sources: Sequence[Source], budget: SizeBudget) -> int | None:
    """The longest file that the budget allows for these tensors; None if any."""
    return budget.limit_bytes(
        original_bytes=sum(s.array.nbytes for s in sources),
        weights=sum(s.array.size for s in sources),
    )


@contextlib.contextmanager
def _drafting() -> Iterator[None]:
    """Say where drafts stand, and how to say so, if they cannot.

    Raises:
        OutputError: there is no space, or no folder, for temporary files.
    """
    try:
        yield
    except OSError as e:
        try:
            folder = tempfile.gettempdir()
        except OSError:  # none can be written to: this is what it says
            folder = os.environ.get("TMPDIR", "a temporary file")
        raise OutputError(
            f"{write_error_reason(folder, e)} Drafts stand in the folder for temporary "
            "files: the environment variable TMPDIR names another."
        ) from e


@_drafting()
def make_draft(
    sources: tuple[Source, ...],
    head: Mapping[str, Any],
    steps: Steps,
    *,
    codec: Callable[[Source], str] | None = None,
    gap: float | None = None,
    progress: Progress | None = None,
) -> Draft:
    """The file that these steps make, with the codecs that suit if none are named.

    Raises:
        OutputError: there is no space for the temporary file.
    """
    total = max(1, sum(source.array.nbytes for source in sources))
    errors: list[Distortion] = []
    done = 0

    def told(numbers: int) -> None:
        if progress is not None:
            part = numbers * source.array.itemsize
            progress((done + part) / total, f"coding {source.name or 'the array'}")

    file = _temporary(total)
    try:
        with _temporary(total) as later:
            assembly = Assembly(file, later)
            coding = encode_all(
                [
                    Wanted(s, steps(s), None if codec is None else codec(s))
                    for s in sources
                ],
                told,
            )
            for source in sources:
                told(0)
                coded = next(coding)
                release(source.array)
                assembly.add(coded)
                errors.append(coded.error)
                done += source.array.nbytes
            length, records = assembly.close(head, error_weights(sources, None))
    except BaseException:
        file.close()
        raise
    found = Draft(length, records, tuple(errors), sources, gap, file)
    weakref.finalize(found, file.close)
    return found


def _temporary(weights_bytes: int) -> io.BufferedIOBase:
    """A file to write in: in memory for few weights, else on disk, without a name."""
    if weights_bytes <= _IN_MEMORY:
        return io.BytesIO()
    return cast(io.BufferedIOBase, tempfile.TemporaryFile())


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A tensor to be coded.

    Attributes:
        source: the tensor.
        step: None for the exact coding.
        codec: only this one; by default what suits.
    """

    source: Source
    step: Step | None
    codec: str | None = None


def encode_all(
    wanted: Sequence[Wanted], told: Callable[[int], object] = lambda _: None
) -> Iterator[EncodedTensor]:
    """The shortest coding of each at its step, in order.

    Args:
        wanted: the tensors.
        told: called with how many numbers of the tensor at hand are done.
    """
    trellis = encode_trellis(
        part
        for each in wanted
        for part in each.source.trellis_parts(each.step, each.codec)
    )
    for each in wanted:
        yield each.source.encoded(each.step, each.codec, trellis=trellis, told=told)
