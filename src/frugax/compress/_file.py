"""A file of weights: decoded whole from bytes, or opened and read tensor by tensor."""

import contextlib
import dataclasses
import difflib
import functools
import mmap
import os
from collections.abc import Iterator, Mapping

import numpy as np

from frugax.budget import Receipt, SizeBudget, check_budget
from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.trees import rebuild
from frugax.typing import PyTree

from ._codecs import decode_tensor, decode_tensors, decoded_parts, integers_of
from ._container import BLOCK, Header, Record, check_whole, read_header
from ._mapped import let_go_of, map_file
from ._prefix import Prefix, best_prefix


class CompressedFile(Mapping[str, np.ndarray]):
    """The weights of an `.fxz` file by name, decoded when they are asked for.

    Opening reads the header only, in time that does not depend on the weights. What is
    decoded is not kept: keep it yourself, or decode again. Close it, or use `with`.

    Attributes:
        header: what the file says of itself: structure, tensors, codecs, errors.
        nbytes: length of the file.
        prefix: what is read of it, and the error of that; None for the whole file.
        receipt: each limit of a stated budget beside what is used of it; None where
            none was stated.
    """

    header: Header
    nbytes: int
    prefix: Prefix | None
    receipt: Receipt | None

    def __init__(
        self, data: bytes | mmap.mmap, *, place: str, budget: SizeBudget | None = None
    ) -> None:
        """Use `frugax.compress.open(path)`."""
        self._file = memoryview(data)
        self._map = data if isinstance(data, mmap.mmap) else None
        self._place = place
        self.nbytes = len(self._file)
        try:
            self.header = read_header(self._file)
        except (CorruptFileError, UnsupportedFileError) as e:
            self.close()
            raise type(e)(f"{place}: {e.args[0]}") from e
        self.prefix = self.receipt = None
        if budget is not None:
            self._read_up_to(budget)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in the tree's order."""
        return tuple(self._records)

    def record(self, name: str) -> Record:
        """What the header says of one tensor.

        Raises:
            KeyError: there is none of that name.
        """
        found = self._records.get(name)
        if found is None:
            near = difflib.get_close_matches(str(name), self._records) or [*self][:3]
            raise KeyError(
                f"{self._place} has no tensor {name!r}; it has "
                f"{', '.join(map(repr, near)) or 'none at all'}"
                + (", ..." if len(self) > len(near) else "")
            )
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __getitem__(self, name: str) -> np.ndarray:
        record = self.record(name)
        try:
            return decode_tensor(self._bytes(), self.header, record)
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{self._place}: {e.args[0]}") from e

    def parts(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Decode one tensor piece by piece: only a piece is in memory.

        Args:
            name: of the tensor.

        Yields:
            Where each piece begins in the flat tensor, and its values. That the last
            ones are those that were written is known only at the end.

        Raises:
            CorruptFileError: the file is damaged.
            KeyError: there is no tensor of that name.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        record = self.record(name)
        at = 0
        try:
            for part in decoded_parts(self._bytes(), self.header, record):
                yield at, part
                at += part.size
                self._let_go()
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{self._place}: {e.args[0]}") from e

    def integers(self, name: str) -> np.ndarray | None:
        """The whole numbers whose product with the record's step is a tensor, flat.

        For decoders on a device. None where the tensor is not stored as such.

        Raises:
            CorruptFileError: the file is damaged.
            KeyError: there is no tensor of that name.
            ValueError: the file is closed.
        """
        record = self.record(name)
        try:
            return integers_of(self._bytes(), self.header, record)
        except CorruptFileError as e:
            raise CorruptFileError(f"{self._place}: {e.args[0]}") from e

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def tree(self) -> PyTree:
        """Decode everything, in the structure it was saved in.

        Raises:
            CorruptFileError: the file is damaged.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        arrays = dict(self.decoded())
        try:
            return rebuild(
                self.header.structure, [arrays[name] for name in self._records]
            )
        except (ValueError, RecursionError) as e:
            raise CorruptFileError(f"{self._place}: {e}") from e

    def decoded(self) -> Iterator[tuple[str, np.ndarray]]:
        """Decode everything, quicker than one by one: small tensors go side by side.

        Yields:
            Name and tensor, in the order in which they are ready.

        Raises:
            CorruptFileError: the file is damaged.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        try:
            for record, array in decode_tensors(
                self._bytes(), self.header, self.header.tensors
            ):
                yield record.name, array
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{self._place}: {e.args[0]}") from e

    def pieces(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """Decode everything in little memory: of a large tensor a piece at a time.

        Yields:
            The tensor's name, where the piece begins in the flat tensor, its values.
            Small tensors come first, whole.

        Raises:
            CorruptFileError: the file is damaged.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        small = [r for r in self.header.tensors if r.size <= BLOCK]
        try:
            for record, array in decode_tensors(self._bytes(), self.header, small):
                yield record.name, 0, array.reshape(-1)
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{self._place}: {e.args[0]}") from e
        for record in self.header.tensors:
            if record.size > BLOCK:
                for at, part in self.parts(record.name):
                    yield record.name, at, part

    def check(self) -> None:
        """Compare the SHA-256 of the whole file with its footer.

        Raises:
            CorruptFileError: they differ.
            ValueError: the file is closed.
        """
        data = self._bytes()
        try:
            check_whole(data, self._let_go)
        except CorruptFileError as e:
            raise CorruptFileError(f"{self._place}: {e.args[0]}") from e

    def close(self) -> None:
        """Let go of the file. Weights that were decoded stay."""
        # An exception on its way keeps views of chunks alive in its frames. The map
        # goes with the last of them; refusing to close would hide that exception.
        with contextlib.suppress(BufferError):
            self._file.release()
            if self._map is not None:
                self._map.close()

    def __enter__(self) -> "CompressedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CompressedFile({self._place!r}, {len(self)} tensors)"

    def _read_up_to(self, budget: SizeBudget) -> None:
        try:
            check_budget(budget, SizeBudget)
            self.prefix, self.receipt = best_prefix(
                self.header, self.nbytes, budget, place=self._place
            )
        except BaseException:
            self.close()
            raise
        self.header = dataclasses.replace(self.header, tensors=self.prefix.tensors)

    def _let_go(self) -> None:
        """Give the memory of what was read of a mapped file back to the system."""
        if self._map is not None:
            let_go_of(self._map, 0, self.nbytes)

    def _bytes(self) -> memoryview:
        """The file, where it is open.

        Raises:
            ValueError: it is closed.
        """
        try:
            len(self._file)
        except ValueError as e:
            raise ValueError(
                f"{self._place}: the file is closed: read inside the with block."
            ) from e
        return self._file

    @functools.cached_property
    def _records(self) -> dict[str, Record]:
        return {record.name: record for record in self.header.tensors}


def open_file(
    path: str | os.PathLike[str], *, budget: SizeBudget | None = None
) -> CompressedFile:
    """Open a file of weights, to decode the tensors one by one.

    Args:
        path: an `.fxz` file; it is mapped, not read.
        budget: how many bytes of a progressive file may be read (header and all), or
            how large the error may be, or both; by default all is read. With a size
            the prefix is the longest within it; with an error, the shortest.

    Returns:
        The file. With a budget, `prefix` says what is read and how large the error is
        at most; `receipt` has each limit beside it.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: there is no such file.
        InfeasibleBudgetError: no prefix is within the budget.
        TypeError: the budget is no `SizeBudget`.
        UnsupportedFileError: it is no `.fxz` file, or of a newer version.
    """
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
