"""A file of weights that is open: read tensor by tensor, or whole."""

import contextlib
import dataclasses
import difflib
import functools
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from frugax.budget import Receipt, SizeBudget, check_budget
from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.trees import PyTree, rebuild

from .._arguments import check_path
from ..arrays._mapped import map_file, release_range
from ..codecs._blocks import BLOCK
from ._decode import (
    decode_integers,
    decode_tensor,
    decode_tensors,
    iter_parts,
    verify_chunks,
    verify_layers,
)
from ._layout import Content, read_header, verify_checksum
from ._metadata import Header, Record
from ._prefix import Prefix, choose_prefix


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
        self._whole = False  # until every byte was compared with the footer
        try:
            with self._placed():
                self.header = read_header(self._file)
        except BaseException:
            self.close()
            raise
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
        with self._placed():
            return decode_tensor(self._content(), record)

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
        with self._placed():
            for part in iter_parts(self._content(), record):
                yield at, part
                at += part.size
                self._let_go()

    def integers(self, name: str) -> np.ndarray | None:
        """The whole numbers whose product with the record's step is a tensor, flat.

        For decoders on a device. None where the tensor is not stored as such.

        Raises:
            CorruptFileError: the file is damaged.
            KeyError: there is no tensor of that name.
            ValueError: the file is closed.
        """
        record = self.record(name)
        with self._placed():
            return decode_integers(self._content(), record)

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
        with self._placed():
            return self._built([arrays[name] for name in self._records])

    def decoded(self) -> Iterator[tuple[str, np.ndarray]]:
        """Decode everything, quicker than one by one: small tensors go side by side.

        Yields:
            Name and tensor, in the order in which they are ready.

        Raises:
            CorruptFileError: the file is damaged.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        with self._placed():
            for record, array in decode_tensors(
                self._content(), self.header.tensors, exact_too=not self._whole
            ):
                yield record.name, array

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
        with self._placed():
            for record, array in decode_tensors(self._content(), small):
                yield record.name, 0, array.reshape(-1)
                self._let_go()
        for record in self.header.tensors:
            if record.size > BLOCK:
                for at, part in self.parts(record.name):
                    yield record.name, at, part

    def check(self) -> None:
        """Compare the SHA-256 of the whole file with its footer.

        Where it is right, what is decoded later compares no chunk's own checksum, and
        `tree` and `decoded` no digest of an exact tensor.

        Raises:
            CorruptFileError: they differ.
            ValueError: the file is closed.
        """
        with self._placed():
            verify_checksum(self._content(), self._let_go)
        self._whole = True

    def verify_header(self) -> None:
        """See that the header tells the truth where decoding does not look.

        Whoever forges a header can make its sums right, and the file's: that the tree
        can be built, the checksum of each chunk, and the digest of each layer of a
        progressive file, is then still to be seen.

        Raises:
            CorruptFileError: it does not.
            ValueError: the file is closed.
        """
        with self._placed():
            self._built(self.names)
            for record in self.header.tensors:
                verify_chunks(self._content(), record)
                verify_layers(self._content(), record)
                self._let_go()

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
            self.prefix, self.receipt = choose_prefix(
                self.header, self.nbytes, budget, place=self._place
            )
        except BaseException:
            self.close()
            raise
        self.header = dataclasses.replace(self.header, tensors=self.prefix.tensors)

    def _built(self, leaves: Sequence[object]) -> PyTree:
        """The tree with these leaves, in the order of the header.

        Raises:
            CorruptFileError: the header has no tree with so many.
        """
        try:
            return rebuild(self.header.structure, leaves)
        except (ValueError, RecursionError) as e:
            raise CorruptFileError(f"its structure is wrong: {e}") from e

    def _let_go(self) -> None:
        """Give the memory of what was read of a mapped file back to the system."""
        if self._map is not None:
            release_range(self._map, 0, self.nbytes)

    def _content(self) -> Content:
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
        return Content(self._file, self.header, self._whole)

    @contextlib.contextmanager
    def _placed(self) -> Iterator[None]:
        """Whatever is wrong inside is wrong with this file.

        Raises:
            CorruptFileError: as inside, with the file's place before it.
            UnsupportedFileError: as inside, with the file's place before it.
        """
        try:
            yield
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{self._place}: {e.args[0]}") from e

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
