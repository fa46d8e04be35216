"""From a path, or from bytes, to weights."""

import os

from frugax.budget import SizeBudget
from frugax.errors import CorruptFileError
from frugax.trees import PyTree

from ._file import CompressedFile
from ._mapped import map_file
from ._path import check_path


def open_file(
    path: str | os.PathLike[str], *, budget: SizeBudget | None = None
) -> CompressedFile:
    """Open a file of weights, to decode the tensors one by one.

    Args:
        path: an `.fxz` file; it is mapped, not read.
        budget: how many bytes of a progressive file may be read (header and all), or
            how large the error may be, or both; by default all is read. With a size
            the prefix is the most exact within it, so that more bytes never make a
            worse model; with an error, the shortest.

    Returns:
        The file. With a budget, `prefix` says what is read and how large the error is
        at most; `receipt` has each limit beside it.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: there is no such file.
        InfeasibleBudgetError: no prefix is within the budget.
        TypeError: the path is none (bytes of a file are for `decompress`), or the
            budget no `SizeBudget`.
        UnsupportedFileError: it is no `.fxz` file, or of a newer version.
    """
    check_path(path)
    if os.stat(path).st_size == 0:  # which cannot be mapped
        raise CorruptFileError(f"{os.fspath(path)}: the file is empty.")
    mapped = map_file(path)
    return CompressedFile(mapped, place=os.fspath(path), budget=budget)


def decompress(data: bytes) -> PyTree:
    """Decode a whole file of weights.

    Args:
        data: what `compress` returned, or the bytes of an `.fxz` file.

    Returns:
        NumPy arrays in the structure that was compressed, of the same dtypes and
        shapes. A structure that a file cannot carry (a class of its own) comes back
        as one dict from names to arrays.

    Raises:
        CorruptFileError: the bytes are damaged or cut off.
        TypeError: these are no bytes, but the path of a file, say.
        UnsupportedFileError: they are no `.fxz` file, or of a newer version.
    """
    # Callers are checked at run time, whatever their annotations promise.
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(
            f"decompress needs the bytes of a file, got {data!r:.60} of type "
            f"{type(data).__name__}: a file is read by frugax.compress.open(path)."
        )
    with CompressedFile(data, place="these bytes") as file:
        file.check()
        return file.tree()
