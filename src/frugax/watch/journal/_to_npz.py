"""Arrays as one .npz file, block by block, so that no array need fit in memory."""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frugax import fileio

from ._tables import Table


def write_npz(
    path: Path,
    tables: Sequence[Table],
    about: str,
    progress: Callable[[int, int], None],
) -> None:
    """Write the arrays, and `about` as the member `journal.json`.

    Raises:
        OutputError: it cannot be written.
    """
    total = sum(table.nbytes for table in tables)
    done = 0
    with (
        fileio.atomic_write(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as archive,
    ):
        archive.writestr("journal.json", about)
        for table in tables:
            with archive.open(f"{table.label}.npy", "w", force_zip64=True) as member:
                head: dict[str, Any] = {
                    "descr": np.lib.format.dtype_to_descr(table.dtype),
                    "fortran_order": False,
                    "shape": table.shape,
                }
                np.lib.format.write_array_header_2_0(member, head)
                for part in table.parts():
                    member.write(np.ascontiguousarray(part).tobytes())
                    done += part.nbytes
                    progress(done, total)
