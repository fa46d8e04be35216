"""Arrays over a mapped file: read when used, and let go of when done with."""

import mmap
import os
from pathlib import Path

import numpy as np

from frugax.errors import CorruptFileError


class MappedFile(mmap.mmap):
    """A file that is mapped, to be read.

    Attributes:
        place: the file.
    """

    place: str

    def check(self) -> None:
        """See that the file is as long as it was: reading past its end is fatal.

        Raises:
            CorruptFileError: it is shorter.
        """
        if self.size() < len(self):
            raise CorruptFileError(
                f"the file changed while it was read: it had {len(self)} bytes, and "
                f"now has {self.size()}. Copy it again; replace files, rather than "
                "write into them."
            )


def map_file(path: str | os.PathLike[str]) -> MappedFile:
    """Map a file that is not empty, to read it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with Path(path).open("rb") as file:
        mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.place = os.fspath(path)
    return mapped


def mapped_under(array: np.ndarray) -> mmap.mmap | None:
    """What an array is a view of, if that is a mapped file."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def check_mapped(array: np.ndarray) -> None:
    """See that the file under an array, if there is one, was not cut off meanwhile.

    Raises:
        CorruptFileError: it was.
    """
    mapped = mapped_under(array)
    if isinstance(mapped, MappedFile):
        try:
            mapped.check()
        except CorruptFileError as e:
            raise CorruptFileError(f"{mapped.place}: {e.args[0]}") from e


def let_go(array: np.ndarray) -> None:
    """Give the memory of a mapped array back to the system; it is read again if used.

    Arrays that are not mapped, not contiguous, or may be written to, are left alone.
    As this ends the reading of every piece, the file is checked for the next one.
    """
    check_mapped(array)
    mapped = mapped_under(array)
    plain = array.flags.c_contiguous and not array.flags.writeable
    if plain and array.nbytes and mapped is not None:
        start = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        let_go_of(mapped, start, array.nbytes)


def let_go_of(mapped: mmap.mmap, start: int, length: int) -> None:
    """Give the memory of a mapped file back, from `start` on, where the system can."""
    if hasattr(mapped, "madvise"):
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, start + length - first)
