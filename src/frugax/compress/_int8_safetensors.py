"""Write `.safetensors` files; `Int8Safetensors`: int8 weights with a scale per row."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from frugax.errors import UnsupportedFileError
from frugax.fileio import atomic_write

from ._load import SAFETENSORS
from .arrays import dtype_from_name
from .codecs.groups import Grouping
from .container import Record


class Part(NamedTuple):
    """One tensor of an exported file.

    Attributes:
        name: its name.
        kind: its dtype, or the name of its blocks.
        shape: in numbers.
        data: its bytes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: bytes


@dataclasses.dataclass(frozen=True)
class Int8Safetensors:
    """A `.safetensors` file of int8 tensors, and float32 steps of their rows.

    Attributes:
        file: the file to write.
    """

    file: Path
    grouping = Grouping(8, 0)

    def takes(self, record: Record) -> bool:
        """Whether a tensor is to be quantised where it can be: any."""
        return True

    def steps_dtype(self, array: np.ndarray) -> "np.dtype[Any]":
        """Return the dtype of the steps of an array."""
        return np.dtype(np.float32)

    def lay_out(
        self, name: str, integers: np.ndarray, steps: np.ndarray
    ) -> tuple[str, list[Part]]:
        """Return the name of the integers, and the tensors that hold them."""
        return "int8", lay_out_int8(name, integers, steps)

    def write(self, parts: Sequence[Part], dense: set[str], place: str) -> None:
        """Write the file."""
        write_safetensors(self.file, parts, place)


def lay_out_int8(name: str, integers: np.ndarray, steps: np.ndarray) -> list[Part]:
    """Return integers of 8 bits and their steps as tensors."""
    return [
        Part(name, "int8", integers.shape, integers.tobytes()),
        Part(f"{name}_scale", steps.dtype.name, steps.shape, steps.tobytes()),
    ]


def write_safetensors(file: Path, parts: Sequence[Part], place: str) -> None:
    """Write a `.safetensors` file: u64 length, JSON header, data.

    Raises:
        UnsupportedFileError: it cannot hold a tensor.
    """
    kinds = {ours: theirs for theirs, ours in SAFETENSORS.items()}
    header: dict[str, object] = {}
    at = 0
    # The widest first, so that all are aligned.
    parts = sorted(parts, key=_width, reverse=True)
    for part in parts:
        if part.kind not in kinds or part.name in header or part.name == "__metadata__":
            raise UnsupportedFileError(
                f"{place}: tensor {part.name!r} of {part.kind} cannot stand in a "
                ".safetensors file, or has the name of another's steps: rename it."
            )
        header[part.name] = {
            "dtype": kinds[part.kind],
            "shape": list(part.shape),
            "data_offsets": [at, at + len(part.data)],
        }
        at += len(part.data)
    plain = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    plain += b" " * (-len(plain) % 8)
    with atomic_write(file) as out:
        out.write(len(plain).to_bytes(8, "little") + plain)
        for part in parts:
            out.write(part.data)


def _width(part: Part) -> int:
    return dtype_from_name(part.kind).itemsize
