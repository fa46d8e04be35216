"""NumPy arrays over memory-mapped weights files, released page by page after use."""

import mmap
import os
from pathlib import Path

import numpy as np

from frugax.errors import CorruptFileError


class MappedFile(mmap.mmap):
    """A file that is mapped for reading.

    Attributes:
        place: the file's path.
    """

    place: str

    def check(self) -> None:
        """Check that the file is still as long as it was."""
        # Touching a page past the end of a truncated file is SIGBUS, which ends the
        # process: no exception handler would see it.
        if self.size() < len(self):
            raise CorruptFileError(
                f"the file changed while it was read: it had {len(self)} bytes, and "
                f"now has {self.size()}. Copy it again; replace files, rather than "
                "write into them."
            )


def map_file(path: str | os.PathLike[str]) -> MappedFile:
    """Map a file for reading; an empty file cannot be mapped."""
    with Path(path).open("rb") as file:
        mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.place = os.fspath(path)
    return mapped


def find_mapped(array: np.ndarray) -> mmap.mmap | None:
    """Return the mapped file that an array is a view of, if there is one."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap):
        return base
    return None


def check_mapped(array: np.ndarray) -> None:
    """Check that the file under an array, if there is one, was not cut off."""
    mapped = find_mapped(array)
    if isinstance(mapped, MappedFile):
        try:
            mapped.check()
        except CorruptFileError as e:
            raise CorruptFileError(f"{mapped.place}: {e.args[0]}") from e


def find_path(array: np.ndarray) -> str | None:
    """Return the path of the file that an array is a view of, where it is known."""
    mapped = find_mapped(array)
    if isinstance(mapped, MappedFile):
        return mapped.place
    name = getattr(array, "filename", None)  # of numpy.memmap and its views
    if name is None:
        return None
    return os.fspath(name)


def release(array: np.ndarray) -> None:
    """Return the pages of a mapped array to the system; they are read again on use.

    Arrays that are not mapped, not contiguous, or writeable are left alone.
    """
    # Every piece ends with a call of this, so it is also where truncation is noticed
    # before the next piece is touched.
    check_mapped(array)
    mapped = find_mapped(array)
    # Pages of a private writeable map hold its changes, and dropping them would undo
    # these.
    plain = array.flags.c_contiguous and not array.flags.writeable
    if plain and array.nbytes and mapped is not None:
        start = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        release_range(mapped, start, array.nbytes)


def release_range(mapped: mmap.mmap, start: int, length: int) -> None:
    """Return some pages of a mapped file to the system, where it has `madvise`."""
    if hasattr(mapped, "madvise"):
        # `madvise` takes only addresses at the start of a page.
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, start + length - first)
