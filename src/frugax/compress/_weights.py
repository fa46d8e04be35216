"""Weights from the files that other tools write, without running anything in them."""

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from frugax.errors import CorruptFileError, UnsupportedFileError

from ._arguments import check_path
from .arrays._leaves import DTYPE_NAMES, dtype_from_name
from .arrays._mapped import map_file
from .container._file import open_file

# https://huggingface.co/docs/safetensors: dtype names there, and ours.
SAFETENSORS = {
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
        TypeError: the path is none.
        UnsupportedFileError: it is of another kind, or holds what is no weight.
    """
    check_path(path)
    path = Path(path)
    match "" if path.is_dir() else path.suffix:
        case ".safetensors":
            return _safetensors(path)
        case ".npz":
            return _npz(path)
        case ".fxz":
            with open_file(path) as file:
                arrays = dict(file.decoded())
                return {name: arrays[name] for name in file}
    if path.is_dir():
        raise UnsupportedFileError(
            f"{path}: this is a folder: name the file of weights in it."
        )
    raise UnsupportedFileError(
        f"{path}: cannot read weights from a {path.suffix or 'suffixless'} file; "
        "use .safetensors, .npz or .fxz."
    )


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the words that stand beside the weights in a file, such as `format: pt`.

    Args:
        path: a `.safetensors` or `.fxz` file; any other has none.

    Returns:
        Text by key, for `save(..., metadata=...)`.

    Raises:
        CorruptFileError: the file is damaged or cut off.
        FileNotFoundError: there is no such file.
        UnsupportedFileError: it is of a newer version.
    """
    path = Path(path)
    if path.suffix == ".fxz":
        with open_file(path) as file:
            return dict(file.header.metadata)
    if path.suffix == ".safetensors":
        with _checked_safetensors(path) as opened:
            return dict(opened.metadata() or {})
    return {}


def _npz(path: Path) -> dict[str, np.ndarray]:
    # Not `np.load` of anything: what is no zip it takes for a pickle, and says how to
    # run it.
    with path.open("rb") as opened:
        start = opened.read(4)
        if start and not start.startswith(b"PK"):
            what = "name it by what it is, or write it again with np.savez"
            if start == b"\x93NUM":
                what = "it holds one array alone; np.savez gives arrays their names"
            raise UnsupportedFileError(f"{path}: this is no .npz file: {what}.")
        opened.seek(0)
        try:
            with np.load(opened, allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
        except (zipfile.BadZipFile, EOFError, zlib.error) as e:
            raise CorruptFileError(
                f"{path}: the file is damaged or cut off ({e}): copy it again."
            ) from e
        except ValueError as e:  # of what stands in the zip
            what = str(e)
            if "allow_pickle" in what:
                what = "pickled objects are never read: save arrays of numbers."
            raise UnsupportedFileError(
                f"{path}: not an .npz file of arrays: {what}"
            ) from e
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # a member that is no .npy: its bytes
            raise UnsupportedFileError(
                f"{path}: not an .npz file of arrays: its member {name!r} is none. "
                "Weights in torch's own files are pickled: save them as .safetensors."
            )
        if array.dtype.name not in DTYPE_NAMES:
            raise UnsupportedFileError(
                f"{path}: array {name!r} has dtype {array.dtype}, which is no dtype of "
                "weights: write the file again without it."
            )
    return found


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    # Not `safetensors.numpy`: it knows no bfloat16.
    with _checked_safetensors(path):
        pass
    mapped = map_file(path)
    start = 8 + int.from_bytes(mapped[:8], "little")
    found: dict[str, np.ndarray] = {}
    for name, entry in json.loads(mapped[8:start]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in SAFETENSORS:
            raise UnsupportedFileError(
                f"{path}: tensor {name!r} has the dtype {entry['dtype']}, which cannot "
                f"be read: convert it to one of {', '.join(SAFETENSORS)}, or leave it "
                "out."
            )
        dtype = dtype_from_name(SAFETENSORS[entry["dtype"]])
        first, end = entry["data_offsets"]
        count = (end - first) // dtype.itemsize
        flat = np.frombuffer(mapped, dtype, count, start + first if count else 0)
        found[name] = flat.reshape(entry["shape"])
    return found


def _checked_safetensors(path: Path) -> Any:
    """The file, open. Opening checks the whole header.

    That is, that tensors lie in the file, side by side, and are as long as their shapes
    say.

    Raises:
        CorruptFileError: it is damaged or cut off.
    """
    try:
        return safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as e:
        raise CorruptFileError(
            f"{path}: this is no .safetensors file, or it is damaged or cut off "
            f"({path.stat().st_size} bytes): download it again. ({e})"
        ) from e
