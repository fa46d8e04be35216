"""Read and write named arrays in `.safetensors` files; reads are memory-mapped.

Format: https://huggingface.co/docs/safetensors. The `safetensors` package checks files
that are read. It does not write them: it would hold every array twice.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.fileio import atomic_write

NAMES: dict[str, np.dtype] = {
    **{f"F{n}": np.dtype(f"float{n}") for n in (16, 32, 64)},
    **{f"I{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"U{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(np.bool_),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_NAME_OF = {dtype: name for name, dtype in NAMES.items()}
MAX_HEADER = 100_000_000  # bytes; readers refuse longer ones


@dataclasses.dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """The contents of a file.

    Attributes:
        arrays: each array by name; they are mapped, and read when they are used.
        metadata: texts by name.
    """

    arrays: dict[str, np.ndarray]
    metadata: dict[str, str]


def write_safetensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
) -> None:
    """Write arrays to a file, whole or not at all."""
    # Largest items first: then every array is aligned to its own item size, which
    # readers that map the file rely on.
    order = sorted(arrays, key=lambda k: (-arrays[k].dtype.itemsize, k))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for key in order:
        array = arrays[key]
        # In native byte order, since dtypes of another order are unequal; bytes are
        # swapped on writing.
        name = _NAME_OF.get(array.dtype.newbyteorder("="))
        if name is None:
            raise TypeError(
                f"{key!r} is {array.dtype}, for which the format has no name."
            )
        start, end = end, end + array.nbytes
        header[key] = {
            "dtype": name,
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, allow_nan=False).encode()
    # Padded with blanks, which JSON ignores, so that the data start at a multiple of 8.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(
            f"names and description take {len(text):,} bytes; the format allows "
            f"{MAX_HEADER:,}. Large constants should be inputs instead."
        )
    with atomic_write(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for key in order:
            # The format has no strides: Fortran-ordered arrays and views are laid out
            # anew, one at a time.
            array = np.asarray(arrays[key], order="C")
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            # As bytes: arrays of ml_dtypes do not support the buffer protocol.
            file.write(little.reshape(-1).view(np.uint8).data)


def read_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Map the arrays of a file; nothing in it is executed."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        # This checks that lengths, offsets and sizes agree, so they are trusted below.
        with safetensors.safe_open(path, "np") as file:
            metadata = dict(file.metadata() or {})
    except (safetensors.SafetensorError, OSError) as e:
        size = "a folder"
        if path.is_file():
            size = f"{path.stat().st_size:,} bytes"
        raise CorruptFileError(
            f"{path}: this is not a .safetensors file, or it is damaged or cut off "
            f"({size}): {e}."
        ) from e
    # The header is parsed again for the offsets, which the package keeps to itself: its
    # own arrays would be copies.
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(length))
    header.pop("__metadata__", None)
    arrays: dict[str, np.ndarray] = {}
    for key, entry in header.items():
        dtype = NAMES.get(entry["dtype"])
        if dtype is None:
            raise UnsupportedFileError(
                f"{path}: {key!r} has the dtype {entry['dtype']}, which NumPy lacks."
            )
        shape = tuple(entry["shape"])
        if 0 in shape:  # mmap refuses a length of 0
            arrays[key] = np.zeros(shape, dtype)
            continue
        start = 8 + length + entry["data_offsets"][0]
        # Mapped as bytes: memmap does not accept the dtypes of ml_dtypes.
        mapped = np.memmap(
            path, np.uint8, "r", start, (entry["data_offsets"][1] + 8 + length - start,)
        )
        # Not as memmaps: arrays computed from them would be of that class as well.
        arrays[key] = mapped.view(np.ndarray).view(dtype).reshape(shape)
    return SafetensorsFile(arrays, metadata)
