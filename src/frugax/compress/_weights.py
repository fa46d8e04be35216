"""Weights from the files that other tools write, without running anything in them."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.files import write_whole

from ._arrays import DTYPE_NAMES, dtype_named
from ._file import open_file
from ._mapped import map_file

# https://huggingface.co/docs/safetensors: dtype names there, and ours.
_SAFETENSORS = {
    **{f"F{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"I{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"U{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    "BF16": "bfloat16",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


def load_weights(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read a file of weights as a dict from names to arrays.

    Args:
        path: a `.safetensors`, `.npz` or `.fxz` file. Nothing in it is executed:
            `.npz` files with pickled objects are refused.

    Returns:
        The weights. Those of a `.safetensors` file cannot be written to, and are read
        from it when they are used: leave it as it is until then.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: there is no such file.
        UnsupportedFileError: it is of another kind, or holds what is no weight.
    """
    path = Path(path)
    match path.suffix:
        case ".safetensors":
            return _safetensors(path)
        case ".npz":
            return _npz(path)
        case ".fxz":
            with open_file(path) as file:
                arrays = dict(file.decoded())
                return {name: arrays[name] for name in file}
    raise UnsupportedFileError(
        f"{path}: cannot read weights from a {path.suffix or 'suffixless'} file; "
        "use .safetensors, .npz or .fxz."
    )


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, EOFError) as e:
        raise CorruptFileError(f"{path}: the file is damaged: {e}.") from e
    except ValueError as e:
        raise UnsupportedFileError(f"{path}: not an .npz file of arrays: {e}") from e
    for name, array in found.items():
        if array.dtype.name not in DTYPE_NAMES:
            raise UnsupportedFileError(
                f"{path}: array {name!r} has dtype {array.dtype}, which is no dtype of "
                "weights: write the file again without it."
            )
    return found


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    # Not `safetensors.numpy`: it knows no bfloat16. Opening checks the whole header:
    # that tensors lie in the file, side by side, and are as long as their shapes say.
    try:
        with safetensors.safe_open(path, framework="numpy"):
            pass
    except safetensors.SafetensorError as e:
        raise CorruptFileError(
            f"{path}: this is no .safetensors file, or it is damaged or cut off "
            f"({path.stat().st_size} bytes): download it again. ({e})"
        ) from e
    mapped = map_file(path)
    start = 8 + int.from_bytes(mapped[:8], "little")
    found: dict[str, np.ndarray] = {}
    for name, entry in json.loads(mapped[8:start]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _SAFETENSORS:
            raise UnsupportedFileError(
                f"{path}: tensor {name!r} has the dtype {entry['dtype']}."
            )
        dtype = dtype_named(_SAFETENSORS[entry["dtype"]])
        first, end = entry["data_offsets"]
        count = (end - first) // dtype.itemsize
        flat = np.frombuffer(mapped, dtype, count, start + first if count else 0)
        found[name] = flat.reshape(entry["shape"])
    return found


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
        if array.dtype.name not in _SAFETENSORS.values():
            raise UnsupportedFileError(
                f"{os.fspath(file)}: tensor {name!r} has dtype {array.dtype}, which a "
                ".safetensors file cannot hold: write an .npz file."
            )
    write_whole(to, safetensors.numpy.save(arrays))


def export_npz(file: str | os.PathLike[str], to: str | os.PathLike[str]) -> None:
    """Write the weights in a `.fxz` file as `.npz`, under their names, not packed.

    Args:
        file: the compressed weights.
        to: the file to write, whole or not at all.

    Raises:
        CorruptFileError: `file` is damaged.
        FileNotFoundError: there is no such file.
        OutputError: `to` cannot be written.
        UnsupportedFileError: `file` is of another kind, or holds a name or a dtype
            that `.npz` has no place for.
        ValueError: `to` is `file` itself.
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
        arrays = dict(compressed.decoded())
        return {
            name: np.ascontiguousarray(arrays[name]).reshape(arrays[name].shape)
            for name in compressed
        }
