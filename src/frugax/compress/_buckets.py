"""Read and write files in buckets (`gs://`, `s3://`), through etils.epath.

They are copied to and from local files, which are mapped; pages of a bucket are not.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from frugax.errors import (
    CorruptFileError,
    MissingExtraError,
    OutputError,
    UnsupportedFileError,
)
from frugax.fileio import atomic_write, write_error_reason

# The files of a folder that weights may be in, or their index.
_WEIGHTS = (".json", ".safetensors")


def in_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an address such as `gs://bucket/model.fxz`."""
    return "://" in os.fspath(path)


@contextlib.contextmanager
def fetched(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Copy a file of a bucket, or the weights of a folder, for the time of a block.

    Files mapped within the block stay readable after it. Errors of damaged files
    name the address.
    """
    address = os.fspath(path)
    with tempfile.TemporaryDirectory(prefix="frugax-") as folder, _explain(address):
        source = _open(address)
        target = Path(folder) / source.name
        if source.is_dir():
            target.mkdir()
            files = [file for file in source.iterdir() if file.suffix in _WEIGHTS]
            for file in files:
                _fetch(file, target / file.name)
        else:
            _fetch(source, target)
        try:
            yield target
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(e.args[0].replace(str(target), address)) from e


def _fetch(source: Any, target: Path) -> None:
    with source.open("rb") as there, target.open("wb") as here:
        shutil.copyfileobj(there, here, 1 << 24)


@contextlib.contextmanager
def write_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that appears whole at the end of the block, like `atomic_write`."""
    if not in_bucket(path):
        with atomic_write(path) as file:
            yield file
        return
    address = os.fspath(path)
    with _explain(address):
        target = _open(address)
        # Buckets without renames copy; readers see the old file or the new one.
        temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                yield file
            temporary.replace(target)
        except BaseException as e:
            with contextlib.suppress(Exception):
                temporary.unlink(missing_ok=True)
            if isinstance(e, OSError):
                raise OutputError(write_error_reason(address, e)) from e
            raise


def file_length(path: str | os.PathLike[str]) -> int:
    """Return the length of a file, in bytes."""
    if not in_bucket(path):
        return os.stat(path).st_size
    return int(_open(os.fspath(path)).stat().length)


def _open(address: str) -> Any:
    from etils import epath

    return epath.Path(address)


@contextlib.contextmanager
def _explain(address: str) -> Iterator[None]:
    # Say what to install, instead of the module that an import missed.
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as e:
        raise MissingExtraError(
            f"{address}: buckets need a package that is not installed ({e}): "
            "pip install 'frugax[buckets]'."
        ) from e
