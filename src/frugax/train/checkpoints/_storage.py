"""Folder operations for checkpoints, the same on a disk and in a bucket."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from frugax.errors import OutputError
from frugax.fileio import make_folder, write_error_reason, write_whole

# A `pathlib.Path`, or an `etils.epath.Path` of a bucket, which has the same methods.
Folder: TypeAlias = Any

_DELETED = ".deleted"
# Orbax 0.12 has no driver for others, such as "s3://".
_BUCKET = "gs://"


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """Return a folder, which need not exist."""
    text = os.fspath(path)
    if text.startswith(_BUCKET):
        from etils import epath  # here, because most runs never need it

        return epath.Path(text)
    scheme, has_scheme, _ = text.partition("://")
    if has_scheme:
        raise ValueError(
            f"folder: checkpoints cannot be written to {scheme}://, only to folders "
            f"and {_BUCKET}: mount {text} as a folder."
        )
    # Orbax refuses relative paths.
    return Path(path).absolute()


def create(folder: Folder) -> None:
    """Create a folder."""
    if isinstance(folder, Path):
        make_folder(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)


def list_folders(folder: Folder) -> list[Folder]:
    """List the sub-folders; none if there is no such folder."""
    try:
        return [p for p in folder.iterdir() if p.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise OutputError(write_error_reason(folder, e)) from e


def list_files(folder: Folder) -> Iterator[Folder]:
    """List all files of a folder and of those in it."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from list_files(entry)
        else:
            yield entry


def write_text(file: Folder, text: str) -> None:
    """Write a file completely or not at all."""
    if isinstance(file, Path):
        write_whole(file, text)
    else:
        file.write_text(text)  # objects of a bucket appear when they are complete


def delete(folder: Folder) -> None:
    """Delete a folder in which other threads may still be at work.

    After a failed write TensorStore's threads clean up behind themselves. A file that
    they delete first is not an error, and under another name they cannot add files.
    """
    if not isinstance(folder, Path):
        folder.rmtree(missing_ok=True)
        return
    aside = folder.with_name(folder.name.removesuffix(_DELETED) + _DELETED)
    _remove_tree(aside)  # left by a process that was killed here
    if folder != aside:
        folder.rename(aside)
        _remove_tree(aside)


def _remove_tree(folder: Path) -> None:
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
