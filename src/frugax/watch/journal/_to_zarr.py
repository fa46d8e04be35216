"""Arrays as a zarr group: a folder, made beside its place and then moved there."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from frugax import fileio
from frugax.errors import MissingExtraError, OutputError

from ._tables import Table


def need_zarr() -> Any:
    """The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import zarr
    except ImportError as e:
        raise MissingExtraError(
            "exporting to zarr needs zarr: pip install zarr, or export to npz."
        ) from e
    return zarr


def write_zarr(
    target: Path,
    tables: Sequence[Table],
    about: dict[str, Any],
    progress: Callable[[int, int], None],
) -> None:
    """Write the arrays, and `about` as the attribute `journal`.

    Raises:
        OutputError: it cannot be written; what stood there stays.
    """
    zarr = need_zarr()
    total = sum(table.nbytes for table in tables)
    done = 0
    folder = fileio.make_folder(target.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=folder))
    try:
        root = zarr.open_group(str(temporary / "new"), mode="w")
        root.attrs.update({"journal": about})
        for table in tables:
            group = root
            if table.stream:
                # Quoted: a name with a slash or dots would be another place.
                group = root.require_group(_node(table.stream))
                group.attrs["stream"] = table.stream
            array = None
            at = 0
            for part in table.parts():
                if array is None:
                    # A chunk holds what a block holds.
                    chunks = tuple(max(1, n) for n in (len(part), *table.shape[1:]))
                    array = group.create_array(
                        _node(table.name),
                        shape=table.shape,
                        chunks=chunks,
                        dtype=table.dtype,
                    )
                    array.attrs["name"] = table.name
                array[at : at + len(part)] = part
                at += len(part)
                done += part.nbytes
                progress(done, total)
        if target.exists():
            target.replace(temporary / "old")
        (temporary / "new").replace(target)
    except OSError as e:
        raise OutputError(fileio.write_error_reason(target, e)) from e
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _node(name: str) -> str:
    quoted = quote(name, safe=" @[]")
    # zarr keeps names of dots and those that begin with "__" for itself.
    if not quoted.strip(".") or quoted.startswith("__"):
        return f"%{ord(quoted[0]):02X}{quoted[1:]}"
    return quoted
