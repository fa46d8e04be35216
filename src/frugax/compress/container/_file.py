"""`open_file` and `decompress`: an `.fxz` file decoded tensor by tensor, or whole."""

import contextlib
import difflib
import functools
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from frugax.errors import CorruptFileError
from frugax.trees import PyTree, rebuild

from .._arguments import check_path
from .._buckets import fetched, in_bucket
from ..arrays import map_file, release_range
from ..codecs import BLOCK
from ._decode import (
    decode_integers,
    decode_tensors,
    iter_parts,
    verify_chunks,
)
from ._layout import FileContent, check_gaps, name_errors, read_header
from ._metadata import Header, Record


class CompressedFile(Mapping[str, np.ndarray]):
    """The weights of an `.fxz` file by name, decoded on access.

    Opening reads the header only, in time that does not depend on the weights. Decoded
    tensors are not kept: keep them yourself, or decode again. Close it, or use `with`.

    Attributes:
        header: structure, tensors, codecs and errors, as the file states them.
        nbytes: length of the file.
        place: the file, for messages.
    """

    header: Header
    nbytes: int
    place: str

    def __init__(self, data: bytes | mmap.mmap, *, place: str) -> None:
        """Use `frugax.compress.open(path)`."""
        # Slices of a memoryview are views, so no chunk of a mapped file is copied to be
        # read.
        self._file = memoryview(data)
        self._map = data if isinstance(data, mmap.mmap) else None
        self.place = place
        self.nbytes = len(self._file)
        self._verified = False  # until every byte was compared with a checksum
        try:
            with name_errors(self.place):
                self.header = read_header(self._file)
        # A constructor that raises gives its caller nothing to close.
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in the tree's order."""
        return tuple(self._records)

    def record(self, name: str) -> Record:
        """Return the header's entry for one tensor.

        Raises:
            KeyError: the file has no tensor of that name.
        """
        record = self._records.get(name)
        if record is None:
            near = difflib.get_close_matches(str(name), self._records) or [*self][:3]
            raise KeyError(
                f"{self.place} has no tensor {name!r}; it has "
                f"{', '.join(map(repr, near)) or 'none at all'}"
                + (", ..." if len(self) > len(near) else "")
            )
        return record

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __getitem__(self, name: str) -> np.ndarray:
        record = self.record(name)
        with name_errors(self.place):
            ((_, array),) = decode_tensors(self._content(), [record])
            return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def parts(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Decode one tensor piece by piece: only one piece is in memory.

        Args:
            name: of the tensor.

        Yields:
            Where each piece begins in the flat tensor, and its values. The digest of
            the tensor is compared only after the last piece.

        Raises:
            CorruptFileError: the file is damaged.
            KeyError: the file has no tensor of that name.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        record = self.record(name)
        with name_errors(self.place):
            for start, part in iter_parts(self._content(), record):
                yield start, part
                self._release()

    def integers(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the integers and the steps whose product is a tensor.

        For decoders on a device: the product is `integers * steps` in the type of the
        steps, one rounding, clipped to the range of the tensor's dtype. It is not
        compared with the tensor's digest here.

        Returns:
            The integers in the smallest dtype that holds them, of the tensor's shape,
            and float steps that broadcast against them: one, or one for each row. None
            where the tensor is exact.

        Raises:
            CorruptFileError: the file is damaged.
            KeyError: the file has no tensor of that name.
            ValueError: the file is closed.
        """
        record = self.record(name)
        with name_errors(self.place):
            return decode_integers(self._content(), record)

    def tree(self) -> PyTree:
        """Decode everything, in the structure it was saved in.

        Raises:
            CorruptFileError: the file is damaged.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        # Tensors come in the order in which they are ready, the tree needs the
        # header's.
        arrays = dict(self.decode_all())
        with name_errors(self.place):
            return self._rebuild([arrays[name] for name in self._records])

    def decode_all(self) -> Iterator[tuple[str, np.ndarray]]:
        """Decode everything, faster than one by one: small tensors go side by side.

        Yields:
            Name and tensor, in the order in which they are ready; tied tensors are
            one array.

        Raises:
            CorruptFileError: the file is damaged.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        own = [record for record in self.header.tensors if not record.tied]
        names: dict[str, list[str]] = {}
        for record in self.header.tensors:
            names.setdefault(record.tied or record.name, []).append(record.name)
        with name_errors(self.place):
            for record, array in decode_tensors(
                self._content(), own, check_exact=not self._verified
            ):
                yield from ((name, array) for name in names[record.name])

    def pieces(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """Decode everything in little memory: large tensors a piece at a time.

        Yields:
            The tensor's name, where the piece begins in the flat tensor, its values.
            Small tensors come first, whole, and tied ones under their first name.

        Raises:
            CorruptFileError: the file is damaged.
            UnsupportedFileError: it uses a coder of a newer version.
            ValueError: the file is closed.
        """
        # Small tensors are decoded side by side; a large one has lanes enough of its
        # own.
        own = [r for r in self.header.tensors if not r.tied]
        small = [r for r in own if r.size <= BLOCK]
        with name_errors(self.place):
            for record, array in decode_tensors(self._content(), small):
                yield record.name, 0, array.reshape(-1)
                self._release()
        for record in own:
            if record.size > BLOCK:
                for start, part in self.parts(record.name):
                    yield record.name, start, part

    def check(self) -> None:
        """Compare all data with their checksums, and build the structure.

        Opening compared all else. A forged file can have right checksums. Afterwards
        decoding skips the checksums of single chunks, and `tree` and `decode_all` also
        the digests of exact tensors.

        Raises:
            CorruptFileError: one differs, or no tree has the structure.
            ValueError: the file is closed.
        """
        with name_errors(self.place):
            check_gaps(self._content())
            for record in self.header.tensors:
                verify_chunks(self._content(), record)
                self._release()
            # Names stand in for the arrays: a structure is sound if a tree can be built
            # of it.
            self._rebuild(self.names)
        self._verified = True

    def close(self) -> None:
        """Close the file. Weights that were decoded stay."""
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
        return f"CompressedFile({self.place!r}, {len(self)} tensors)"

    def _rebuild(self, leaves: Sequence[object]) -> PyTree:
        # The tree with these leaves, in the order of the header.
        try:
            return rebuild(self.header.structure, leaves)
        except (ValueError, RecursionError) as e:
            raise CorruptFileError(f"its structure is wrong: {e}") from e

    def _release(self) -> None:
        """Return the pages that were read of a mapped file to the system."""
        if self._map is not None:
            release_range(self._map, 0, self.nbytes)

    def _content(self) -> FileContent:
        try:
            len(self._file)
        except ValueError as e:
            raise ValueError(
                f"{self.place}: the file is closed: read inside the with block."
            ) from e
        return FileContent(self._file, self.header, self._verified)

    @functools.cached_property
    def _records(self) -> dict[str, Record]:
        return {record.name: record for record in self.header.tensors}


def open_file(path: str | os.PathLike[str]) -> CompressedFile:
    """Open a file of weights, to decode the tensors one by one.

    Args:
        path: an `.fxz` file; it is mapped, not read. One in a bucket (`gs://`, `s3://`)
            is copied to a temporary file first.

    Returns:
        The file.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: there is no such file.
        TypeError: `path` is not a path (bytes of a file are for `decompress`).
        UnsupportedFileError: it is not an `.fxz` file, or is of a newer version.
    """
    check_path(path)
    with fetched(path) if in_bucket(path) else contextlib.nullcontext(path) as local:
        if os.stat(local).st_size == 0:  # which cannot be mapped
            raise CorruptFileError(f"{os.fspath(path)}: the file is empty.")
        mapped = map_file(local)
    return CompressedFile(mapped, place=os.fspath(path))


def decompress(data: bytes) -> PyTree:
    """Decode a whole file of weights.

    Args:
        data: the result of `compress`, or the bytes of an `.fxz` file.

    Returns:
        NumPy arrays in the structure that was compressed, of the same dtypes and
        shapes. A structure that a file cannot carry (a class of its own) comes back
        as one dict from names to arrays.

    Raises:
        CorruptFileError: the bytes are damaged or cut off.
        TypeError: `data` is not bytes, but the path of a file, say.
        UnsupportedFileError: it is not an `.fxz` file, or is of a newer version.
    """
    # Callers are checked at run time, whatever their annotations say.
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(
            f"decompress needs the bytes of a file, got {data!r:.60} of type "
            f"{type(data).__name__}: a file is read by frugax.compress.open(path)."
        )
    with CompressedFile(data, place="these bytes") as file:
        file.check()
        return file.tree()
