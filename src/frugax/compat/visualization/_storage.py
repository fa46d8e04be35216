"""Store nested data by name in a folder, compressed, without running any code."""

import json
import os
from pathlib import Path
from typing import Any

from frugax import fileio
from frugax.errors import CorruptFileError, OutputError, UnsupportedFileError

from ._plain_tree import to_tree
from ._store_format import MOST_TREE_BYTES, TooLargeError, decode, encode

# Not ".pkl.gz" as in the guide: these files are not pickles, and other tools must not
# load them as such.
SUFFIX = ".fxstore"
# File systems allow 255 bytes; the rest is for the suffix and a temporary name.
_LONGEST_NAME = 200
_MB = 2**20


class CompressedStorage:
    """Keeps nested data under names, each in a file of its own.

    Data are dicts, lists, tuples, numbers, text, None, truth values, bytes, and arrays
    of NumPy or JAX (which come back as NumPy's); all come back exactly. No code
    is ever run from a file: a damaged or foreign file is an error.

    Attributes:
        base_path: the folder.
        compression_level: of zstd, 1 to 22; 0 for none.
        most_bytes: the most that data may take, unpacked.
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str],
        compression_level: int = 6,
        *,
        most_bytes: int = 2 * 2**30,
    ) -> None:
        """Use a folder; it is made with the first file.

        Raises:
            ValueError: the level is not 0 to 22, or `most_bytes` is below 1.
        """
        # `type` and not isinstance: True would pass for level 1.
        if type(compression_level) is not int or not 0 <= compression_level <= 22:
            raise ValueError(
                "compression_level must be a whole number from 0 (none) to 22, got "
                f"{compression_level!r}."
            )
        if most_bytes < 1:
            raise ValueError(f"most_bytes must be >= 1, got {most_bytes}.")
        self.base_path = Path(base_path)
        self.compression_level = compression_level
        self.most_bytes = most_bytes

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
        tree, arrays = to_tree(data)
        # NaN and infinity are written as Python's own words, which `json.loads` reads
        # back.
        text = json.dumps(tree, separators=(",", ":")).encode()
        size = len(text) + sum(array.nbytes for array in arrays)
        if size > self.most_bytes:
            raise ValueError(
                f"the data of {name!r} take {size:,} bytes; at most "
                f"{self.most_bytes:,}: raise most_bytes, or save them in pieces."
            )
        if len(text) > MOST_TREE_BYTES:
            raise ValueError(
                f"the data of {name!r} have too many small pieces: turn lists of "
                "numbers into arrays."
            )
        # Beside the target and then renamed, so that a crash leaves the older data.
        with fileio.atomic_write(path) as file:
            for piece in encode(text, arrays, level=self.compression_level):
                file.write(piece)
        return path

    def load(self, name: str) -> Any:
        """Read the data saved under a name.

        Raises:
            CorruptFileError: the file is damaged or of another kind.
            FileNotFoundError: nothing is saved under that name.
            UnsupportedFileError: a newer version wrote it.
            ValueError: the name is not a plain file name, or the data would take more
                than `most_bytes`.
        """
        path = self._existing(name)
        try:
            return decode(path.read_bytes(), most_bytes=self.most_bytes)
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{path}: {e.args[0]}") from e
        except TooLargeError as e:
            raise ValueError(
                f"{path} would take {e.args[0]:,} bytes; at most {self.most_bytes:,} "
                "are allowed: raise most_bytes if you trust it."
            ) from e

    def exists(self, name: str) -> bool:
        """Whether something is saved under a name.

        Raises:
            ValueError: the name is not a plain file name.
        """
        return self._path(name).is_file()

    def delete(self, name: str) -> bool:
        """Remove the data of a name; returns whether there was any.

        Raises:
            OutputError: it cannot be removed.
            ValueError: the name is not a plain file name.
        """
        path = self._path(name)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as e:
            raise OutputError(fileio.write_error_reason(path, e)) from e
        return True

    def get_size_mb(self, name: str) -> float:
        """How large the file is, in MiB.

        Raises:
            FileNotFoundError: nothing is saved under that name.
            ValueError: the name is not a plain file name.
        """
        return self._existing(name).stat().st_size / _MB

    def list_files(self) -> list[str]:
        """The names under which something is saved, sorted."""
        # Sorted, since file systems list in no fixed order.
        return sorted(
            path.name.removesuffix(SUFFIX)
            for path in self.base_path.glob(f"*{SUFFIX}")
            # What begins with a dot is being written.
            if path.is_file() and not path.name.startswith(".")
        )

    def _existing(self, name: str) -> Path:
        path = self._path(name)
        if not path.is_file():
            raise FileNotFoundError(
                f"nothing is saved as {name!r} in {self.base_path}."
            )
        return path

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
