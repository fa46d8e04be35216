"""Where items go that leave the memory of a cache, and what becomes of their files."""

from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable


@runtime_checkable
class Store(Protocol):
    """Where items go that leave the memory: `frugax.watch.CompressedStorage` is one."""

    def save(self, data: Any, name: str) -> Path:
        """Write a value under a name; returns the file."""
        ...

    def load(self, name: str) -> Any:
        """Read it back."""
        ...


class Spilled(NamedTuple):
    """One item in a store."""

    name: str
    path: Path


def open_store(path: str | Path, *, compression: bool) -> Store:
    """A store in a folder of the user's."""
    from frugax.watch.journal import CompressedStorage

    return CompressedStorage(Path(path), compression_level=6 if compression else 0)


def remove_file(file: Spilled) -> None:
    """Remove what nobody will read again."""
    try:
        file.path.unlink(missing_ok=True)
    except OSError:
        return  # it may stay: nothing will read it, and its folder is the user's


def remove_all(files: dict[str, Spilled]) -> None:
    """Remove all files of a cache, when it goes."""
    for file in list(files.values()):
        remove_file(file)
