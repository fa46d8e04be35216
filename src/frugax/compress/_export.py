"""Compressed weights back into files that other tools read."""

import io
import os
import zipfile

import numpy as np
import safetensors.numpy

from frugax.errors import UnsupportedFileError
from frugax.files import write_whole

from ._file import open_file
from ._weights import SAFETENSORS


def export_safetensors(
    file: str | os.PathLike[str], to: str | os.PathLike[str]
) -> None:
    """Write the weights in a `.fxz` file as `.safetensors`, under their names.

    Args:
        file: the compressed weights.
        to: the file to write, whole or not at all.

    Raises:
        CorruptFileError: `file` is damaged.
        FileNotFoundError: there is no such file.
        OutputError: `to` cannot be written.
        UnsupportedFileError: `file` is of another kind, or holds a name or a dtype
            that `.safetensors` has no place for.
        ValueError: `to` is `file` itself.
    """
    arrays = _decoded(file, to)
    if "__metadata__" in arrays:
        raise UnsupportedFileError(
            f"{os.fspath(file)}: a .safetensors file cannot hold a tensor named "
            "'__metadata__': rename it and compress again, or write an .npz file."
        )
    for name, array in arrays.items():
        if array.dtype.name not in SAFETENSORS.values():
            raise UnsupportedFileError(
                f"{os.fspath(file)}: tensor {name!r} has dtype {array.dtype}, which a "
                ".safetensors file cannot hold: write an .npz file."
            )
    write_whole(to, safetensors.numpy.save(arrays))


def export_npz(file: str | os.PathLike[str], to: str | os.PathLike[str]) -> None:
    """As `export_safetensors`, but as `.npz`: not packed, to be read by `numpy.load`.

    Raises:
        UnsupportedFileError: a name or a dtype has no place in an `.npz` file.
    """
    arrays = _decoded(file, to)
    # Not `np.savez`: it takes no array named "file".
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as packed:
        for name, array in arrays.items():
            if array.dtype.kind == "V":  # NumPy would write bytes without a meaning
                raise UnsupportedFileError(
                    f"{os.fspath(file)}: tensor {name!r} has dtype {array.dtype}, "
                    "which an .npz file cannot hold: write a .safetensors file."
                )
            if name.endswith(".npy") or "\0" in name:
                raise UnsupportedFileError(
                    f"{os.fspath(file)}: an .npz file cannot hold the name {name!r}: "
                    "rename the tensor and compress again."
                )
            with packed.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    write_whole(to, found.getvalue())


def _decoded(
    file: str | os.PathLike[str], to: str | os.PathLike[str]
) -> dict[str, np.ndarray]:
    """Every tensor of a file, to be written into another.

    Raises:
        ValueError: `to` is `file` itself.
    """
    if os.path.exists(to) and os.path.samefile(file, to):
        raise ValueError(
            f"{os.fspath(file)} and {os.fspath(to)} are one file: write the weights to "
            "another."
        )
    with open_file(file) as compressed:
        # `ascontiguousarray` makes 0-d arrays 1-d.
        return {
            n: np.ascontiguousarray(a).reshape(a.shape) for n, a in compressed.items()
        }
