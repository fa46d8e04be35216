"""Load weights from the files of other tools, without running anything in them."""

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
from .arrays import DTYPE_NAMES, dtype_from_name, map_file
from .container import open_file

# dtype names of https://huggingface.co/docs/safetensors, and their names here.
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
        TypeError: `path` is not a path.
        UnsupportedFileError: it is of another kind, or does not hold weights only.
    """
    check_path(path)
    path = Path(path)
    match "" if path.is_dir() else path.suffix:
        case ".safetensors":
            return _read_safetensors(path)
        case ".npz":
            return _read_npz(path)
        case ".fxz":
            with open_file(path) as file:
                arrays = dict(file.decode_all())
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
    """Read the text that stands beside the weights in a file, such as `format: pt`.

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
        with _open_safetensors(path) as opened:
            return dict(opened.metadata() or {})
    return {}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    # `np.load` would take anything but a zip for a pickle, and say how to run it.
    with path.open("rb") as opened:
        start = opened.read(4)
        if start and not start.startswith(b"PK"):
            what = "rename it, or write it again with np.savez"
            if start == b"\x93NUM":
                what = "it holds one array alone; np.savez gives arrays their names"
            raise UnsupportedFileError(f"{path}: not an .npz file: {what}.")
        opened.seek(0)
        try:
            # A pickle runs code while it is read, and weights come from strangers.
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (zipfile.BadZipFile, EOFError, zlib.error) as e:
            raise CorruptFileError(
                f"{path}: the file is damaged or cut off ({e}): copy it again."
            ) from e
        except ValueError as e:  # about a member of the zip
            what = str(e)
            if "allow_pickle" in what:
                what = "pickled objects are never read: save arrays of numbers."
            raise UnsupportedFileError(
                f"{path}: not an .npz file of arrays: {what}"
            ) from e
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # the bytes of a member that is not .npy
            raise UnsupportedFileError(
                f"{path}: not an .npz file of arrays: its member {name!r} is not an "
                "array. Weights in torch's own files are pickled: save them as "
                ".safetensors."
            )
        if array.dtype.name not in DTYPE_NAMES:
            raise UnsupportedFileError(
                f"{path}: array {name!r} has dtype {array.dtype}, which weights cannot "
                "have: write the file again without it."
            )
    return arrays


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    # `safetensors.numpy` cannot read bfloat16.
    with _open_safetensors(path):
        pass
    mapped = map_file(path)
    # The layout of huggingface.co/docs/safetensors: u64 length, JSON header, data.
    start = 8 + int.from_bytes(mapped[:8], "little")
    arrays: dict[str, np.ndarray] = {}
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
        # An empty tensor may begin at the end of the file, an offset that NumPy
        # refuses.
        flat = np.frombuffer(mapped, dtype, count, start + first if count else 0)
        arrays[name] = flat.reshape(entry["shape"])
    return arrays


def _open_safetensors(path: Path) -> Any:
    # Opening checks the whole header: that tensors lie in the file, side by side, and
    # are as long as their shapes require.
    try:
        return safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as e:
        raise CorruptFileError(
            f"{path}: not a .safetensors file, or it is damaged or cut off "
            f"({path.stat().st_size} bytes): download it again. ({e})"
        ) from e
