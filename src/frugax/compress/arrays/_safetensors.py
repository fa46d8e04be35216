"""Read and write `.safetensors` files: named arrays, and text beside them.

Format: https://huggingface.co/docs/safetensors. The `safetensors` package checks files
that are read. It does not write them: it would hold every array twice.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.fileio import atomic_write

from ._leaves import dtype_from_name
from ._mapped import map_file

# dtype names of https://huggingface.co/docs/safetensors, and their names here.
_DTYPES = {
    **{f"F{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"I{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"U{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    "BF16": "bfloat16",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
# Two to a byte, the first in its lower half; read as a byte each.
_HALF_BYTES = {"F4": "float4_e2m1fn"}
_LONGEST_HEADER = 100_000_000  # bytes


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Map the arrays of a file; nothing in it is executed.

    Raises:
        CorruptFileError: the file is damaged or cut off, or none of this kind.
        FileNotFoundError: there is no such file.
        UnsupportedFileError: it has a dtype that NumPy lacks.
    """
    # `safetensors.numpy` cannot read bfloat16.
    read_metadata(path)
    mapped = map_file(path)
    # The layout of huggingface.co/docs/safetensors: u64 length, JSON header, data.
    start = 8 + int.from_bytes(mapped[:8], "little")
    arrays: dict[str, np.ndarray] = {}
    for name, entry in json.loads(mapped[8:start]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        if half := _HALF_BYTES.get(entry["dtype"]):
            pairs = np.frombuffer(mapped, np.uint8, end - first, start + first)
            each = np.stack([pairs & 0xF, pairs >> 4], axis=-1)
            arrays[name] = each.view(dtype_from_name(half)).reshape(entry["shape"])
            continue
        if entry["dtype"] not in _DTYPES:
            raise UnsupportedFileError(
                f"{path}: tensor {name!r} has the dtype {entry['dtype']}, which cannot "
                f"be read: convert it to one of {', '.join(_DTYPES)}, or leave it "
                "out."
            )
        dtype = dtype_from_name(_DTYPES[entry["dtype"]])
        count = (end - first) // dtype.itemsize
        # An empty tensor may begin at the end of the file, an offset that NumPy
        # refuses.
        flat = np.frombuffer(mapped, dtype, count, start + first if count else 0)
        arrays[name] = flat.reshape(entry["shape"])
    return arrays


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the text beside the arrays of a file, by name.

    Raises:
        CorruptFileError: the file is damaged or cut off, or none of this kind.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    if path.is_dir():
        raise CorruptFileError(f"{path}: this is a folder, not a .safetensors file.")
    # Opening checks the whole header: that tensors lie in the file, side by side, and
    # are as long as their shapes require.
    try:
        with safetensors.safe_open(path, framework="numpy") as opened:
            return dict(opened.metadata() or {})
    except safetensors.SafetensorError as e:
        raise CorruptFileError(
            f"{path}: not a .safetensors file, or it is damaged or cut off "
            f"({path.stat().st_size} bytes): download it again. ({e})"
        ) from e


def write_safetensors(
    file: Path,
    entries: Sequence[tuple[str, str, tuple[int, ...]]],
    data: Callable[[Sequence[str]], Iterable[Iterable[bytes]]],
    place: str,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a file: u64 length, JSON header, data.

    Args:
        file: the file to write, whole or not at all.
        entries: name, dtype and shape of each tensor.
        data: from the names in the order of the file to the bytes of each tensor.
        place: where the weights come from, for messages.
        metadata: text by key.

    Raises:
        UnsupportedFileError: it cannot hold a tensor.
    """
    kinds = {ours: theirs for theirs, ours in _DTYPES.items()}
    header: dict[str, object] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    at = 0
    # Offsets follow from dtypes and shapes, so the header is written first. The order
    # is that of `safetensors` itself: the widest first, so that all are aligned.
    width = lambda entry: -dtype_from_name(entry[1]).itemsize
    ordered = sorted(entries, key=lambda entry: (width(entry), entry[0]))
    for name, kind, shape in ordered:
        if name == "__metadata__":
            raise UnsupportedFileError(
                f"{place}: a .safetensors file cannot hold a tensor named "
                "'__metadata__': rename it, or write an .npz file."
            )
        if kind not in kinds:
            raise UnsupportedFileError(
                f"{place}: tensor {name!r} has dtype {kind}, which a .safetensors file "
                "cannot hold: write an .npz file."
            )
        if name in header:
            raise UnsupportedFileError(
                f"{place}: {name!r} is the name of a tensor and of another's steps: "
                "rename it."
            )
        length = math.prod(shape) * dtype_from_name(kind).itemsize
        header[name] = {
            "dtype": kinds[kind],
            "shape": list(shape),
            "data_offsets": [at, at + length],
        }
        at += length
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # Spaces up to a multiple of 8, as `safetensors` writes them, keep the data aligned.
    text += b" " * (-len(text) % 8)
    if len(text) > _LONGEST_HEADER:
        raise UnsupportedFileError(
            f"{place}: names and metadata take {len(text):,} bytes, and readers take "
            f"no more than {_LONGEST_HEADER:,}: shorten them."
        )
    with atomic_write(file) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for pieces in data([name for name, _, _ in ordered]):
            out.writelines(pieces)


def write_arrays(
    file: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
) -> None:
    """Write arrays in memory to a file; see `write_safetensors`."""
    entries = [(name, a.dtype.name, a.shape) for name, a in arrays.items()]

    def data(name: str) -> list[Any]:
        # The format has no strides, and arrays of ml_dtypes have no buffers of bytes.
        little = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        return [np.ascontiguousarray(little).reshape(-1).view(np.uint8).data]

    write_safetensors(
        Path(file), entries, lambda names: map(data, names), os.fspath(file), metadata
    )
