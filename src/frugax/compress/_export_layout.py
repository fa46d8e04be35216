"""The pieces of an export: weights to read, tensors to write, and their roundings."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from frugax.errors import UnsupportedFileError

from ._load import load_weights
from ._tensor_table import TensorReport
from .arrays import find_ties
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


@contextlib.contextmanager
def open_weights(
    path: str | os.PathLike[str],
) -> Iterator[tuple[Mapping[str, np.ndarray], tuple[TensorReport, ...]]]:
    """Open what `load_weights` reads; the tensors of a `.fxz` file on demand.

    With a row for each tensor: the errors that its file states, 0 of an original.
    """
    if Path(path).suffix == ".fxz":
        with open_file(path) as file:
            yield file, tuple(map(TensorReport.of, file.header.tensors))
        return
    arrays = load_weights(path)
    ties = find_ties(arrays)
    entries = (
        TensorReport(
            name=name,
            dtype=array.dtype.name,
            shape=array.shape,
            codec="dense",
            bytes=array.nbytes,
            rel_error=0.0,
            max_abs=0.0,
            tied=ties.get(name, ""),
        )
        for name, array in arrays.items()
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
    array: np.ndarray,
    grouping: Grouping,
    dtype: "np.dtype[Any]",
    read_as: "np.dtype[Any]",
    *,
    place: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the integers, their steps, and the numbers that readers make of these.

    Raises:
        UnsupportedFileError: the dtype of the steps cannot hold one of them.
    """
    integers, steps = quantise_groups(array, grouping, dtype)
    if not np.isfinite(steps.astype(np.float32)).all():
        raise UnsupportedFileError(
            f"{place} has numbers up to {np.abs(array).max():.3g}, whose steps are "
            f"beyond {steps.dtype.name}: scale its weights down."
        )
    return integers, steps, decode_groups(integers, steps, grouping, read_as)
