"""Store nested data by name in a folder, compressed."""

import os
from pathlib import Path
from typing import Any

from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.fileio import write_whole

from ._stored_data import decode, encode

# Not ".pkl.gz" as in the guide: these files are not pickles, and other tools must not
# load them as such.
SUFFIX = ".fxstore"
# File systems allow 255 bytes; the rest is for the suffix and a temporary name.
_LONGEST_NAME = 200


class CompressedStorage:
    """Keeps nested data under names, each in a file of its own.

    Data are dicts with text keys, lists, tuples, numbers, text, None, truth values, and
    arrays of NumPy or JAX (which come back as NumPy's); all come back exactly. No code
    is ever run from a file: a damaged or foreign file is an error.

    Attributes:
        base_path: the folder.
        compression: whether time is spent on making new files small.
    """

    def __init__(
        self, base_path: str | os.PathLike[str], *, compression: bool = True
    ) -> None:
        """Use a folder; it is made with the first file."""
        self.base_path = Path(base_path)
        self.compression = compression

    def save(self, data: object, name: str) -> Path:
        """Write data under a name, whole or not at all, replacing older data.

        Returns:
            The file.

        Raises:
            OutputError: the file cannot be written; older data stays.
            TypeError: something in the data cannot be stored; says where.
            ValueError: the name is not a plain file name, or the data are too large or
                nested too deep.
        """
        path = self._path(name)
        write_whole(path, encode(data, compression=self.compression))
        return path

    def load(self, name: str) -> Any:
        """Read the data saved under a name.

        Raises:
            CorruptFileError: the file is damaged or of another kind.
            FileNotFoundError: nothing is saved under that name.
            UnsupportedFileError: a newer version wrote it.
            ValueError: the name is not a plain file name.
        """
        path = self._path(name)
        if not path.is_file():
            raise FileNotFoundError(
                f"nothing is saved as {name!r} in {self.base_path}."
            )
        try:
            return decode(path.read_bytes())
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{path}: {e.args[0]}") from e

    def exists(self, name: str) -> bool:
        """Whether something is saved under a name.

        Raises:
            ValueError: the name is not a plain file name.
        """
        return self._path(name).is_file()

    def list_files(self) -> list[str]:
        """The names under which something is saved, sorted."""
        return sorted(
            path.name.removesuffix(SUFFIX)
            for path in self.base_path.glob(f"*{SUFFIX}")
            # What begins with a dot is being written.
            if path.is_file() and not path.name.startswith(".")
        )

    def _path(self, name: object) -> Path:
        if (
            not isinstance(name, str)
            or not name
            or name.startswith(".")
            or any(c in '/\\:"' or not c.isprintable() for c in name)
            or len(name.encode()) > _LONGEST_NAME
        ):
            raise ValueError(
                f"a name must be a plain file name, without folders or a dot in front, "
                f"of at most {_LONGEST_NAME} bytes, got {name!r:.99}."
            )
        return self.base_path / f"{name}{SUFFIX}"
