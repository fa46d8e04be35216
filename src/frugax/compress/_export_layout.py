"""The pieces of an export: weights to read, tensors to write, and their roundings."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from frugax.errors import UnsupportedFileError

from ._load import load_weights
from .arrays import dtype_from_name, find_ties, write_safetensors
from .codecs.groups import Grouping, decode_groups, quantise_groups
from .container import open_file


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


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to export.

    Attributes:
        name: its name.
        dtype: its dtype.
        shape: its shape.
        rel_error: the error that its file states; 0 of an original.
        tied: the tensor that it is a copy of; empty if of none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    rel_error: float = 0.0
    tied: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * dtype_from_name(self.dtype).itemsize


@contextlib.contextmanager
def open_weights(
    path: str | os.PathLike[str],
) -> Iterator[tuple[Mapping[str, np.ndarray], tuple[Entry, ...]]]:
    """Open what `load_weights` reads; the tensors of a `.fxz` file on demand."""
    if Path(path).suffix == ".fxz":
        with open_file(path) as file:
            records = file.header.tensors
            entries = (
                Entry(r.name, r.dtype, r.shape, r.rel_error, r.tied) for r in records
            )
            yield file, tuple(entries)
        return
    arrays = load_weights(path)
    ties = find_ties(arrays)
    entries = (
        Entry(n, a.dtype.name, a.shape, tied=ties.get(n, "")) for n, a in arrays.items()
    )
    yield arrays, tuple(entries)


def split_gate_up(
    name: str, rows: int, *, is_interleaved: bool = False
) -> dict[str, slice]:
    """Return which outputs each projection has in a tensor that may have two of them.

    Args:
        name: of the projection, as experts stored as one tensor have it.
        rows: how many outputs the tensor has.
        is_interleaved: whether outputs of both take turns; otherwise they are halves.
    """
    if name != "gate_up_proj" or rows % 2:
        return {name: slice(None)}
    if is_interleaved:
        return {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    return {"gate_proj": slice(rows // 2), "up_proj": slice(rows // 2, None)}


class Rounded(NamedTuple):
    """A tensor as it is written.

    Attributes:
        codec: the name of its integers, or its dtype.
        parts: the tensors that hold it.
        decoded: the numbers that a reader gets.
    """

    codec: str
    parts: list[Part]
    decoded: np.ndarray


@dataclasses.dataclass(frozen=True)
class Item:
    """A tensor of the file to write, made from one or more tensors of the weights.

    Attributes:
        name: in the file.
        sources: the names that it is made from.
        shape: of the tensor.
        why_dense: why it stays as it is; empty where it may be rounded.
        make: makes it of its sources; None where it is its only source.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    why_dense: str = ""
    make: Callable[[list[np.ndarray]], np.ndarray] | None = None


def keep(name: str, array: np.ndarray) -> Rounded:
    """Return a tensor that is written as it is."""
    kind = array.dtype.name
    return Rounded(kind, [Part(name, kind, array.shape, array.tobytes())], array)


def round_to_groups(
    array: np.ndarray, grouping: Grouping, dtype: "np.dtype[Any]", *, place: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the integers, the steps and the numbers that these stand for.

    Raises:
        UnsupportedFileError: the dtype of the steps cannot hold one of them.
    """
    integers, steps = quantise_groups(array, grouping, dtype)
    if not np.isfinite(steps.astype(np.float32)).all():
        raise UnsupportedFileError(
            f"{place} has numbers up to {np.abs(array).max():.3g}, whose steps are "
            f"beyond {steps.dtype.name}: scale its weights down."
        )
    return integers, steps, decode_groups(integers, steps, grouping, array.dtype)


def write_parts(file: Path, parts: Sequence[Part], place: str) -> None:
    """Write a `.safetensors` file of tensors in memory."""
    by_name = {part.name: part.data for part in parts}
    write_safetensors(
        file,
        [(part.name, part.kind, part.shape) for part in parts],
        lambda names: ([by_name[name]] for name in names),
        place,
    )
