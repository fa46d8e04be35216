"""Arrays over a mapped file: read when used, and let go of when done with."""

import mmap
import os
from pathlib import Path

import numpy as np


def map_file(path: str | os.PathLike[str]) -> mmap.mmap:
    """Map a file that is not empty, to read it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def let_go(array: np.ndarray) -> None:
    """Give the memory of a mapped array back to the system; it is read again if used.

    Arrays that are not mapped, not contiguous, or may be written to, are left alone.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    plain = array.flags.c_contiguous and not array.flags.writeable
    if not plain or not array.nbytes or not isinstance(base, mmap.mmap):
        return
    start = array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    let_go_of(base, start, array.nbytes)


def let_go_of(mapped: mmap.mmap, start: int, length: int) -> None:
    """Give the memory of a mapped file back, from `start` on, where the system can."""
    if hasattr(mapped, "madvise"):
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, start + length - first)
