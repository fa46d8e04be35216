"""Cut a tensor into chunks, and code those of integers times a step."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from .._batches import batches
from . import grid
from ._channels import ChannelScaling
from .steps import Step

BLOCK = 1 << 22  # numbers in one chunk: at most 32 MiB decoded
# Trellis lanes that are coded side by side, at most: some 100 MB of working memory.
_MAX_LANES = 2048
# A row's size is its root mean square, but at most this many times its median number.
_MEDIANS = 4
# The bytes of each chunk, and its decoded values; None where some number is too large
# for the codec.
CodedBlocks = Iterator[tuple[bytes, np.ndarray] | None]


def row_length(shape: tuple[int, ...]) -> int:
    """Return how many numbers share a first index, that is, are in one row."""
    if len(shape) < 2:
        return 256
    return max(1, math.prod(shape[1:]))


def numbers_per_chunk(codec: str, shape: tuple[int, ...]) -> int:
    """Return how many numbers are in each chunk but the last, at most `BLOCK`."""
    row = row_length(shape)
    if row <= BLOCK and grid.find_form(codec) is not None:
        return BLOCK // row * row  # whole rows, as the classes are of rows
    return BLOCK


@dataclasses.dataclass(frozen=True)
class RowScaling:
    """Steps that follow the size of a row: its root mean square to a power.

    Attributes:
        power: 1 for errors relative to each row, 0 for one step everywhere.
        typical: the size of rows whose scale is 1: the geometric mean of all.
    """

    power: float
    typical: float
    form: ClassVar[grid.Form] = grid.Form(scaled=True)

    def exponents(self, values: np.ndarray, lanes: grid.LaneLayout) -> np.ndarray:
        """Return the exponent of each run of flat values, int8."""
        sizes = np.sqrt(grid.sum_run_squares(values, lanes) / lanes.run_lengths)
        sizes = np.minimum(sizes, _bound_sizes(values, lanes))
        # A row of zeros has no size: as small as scales go.
        ratio = np.maximum(sizes / self.typical, 2.0**-15)
        return grid.nearest_exponents(ratio**self.power)


def _bound_sizes(values: np.ndarray, lanes: grid.LaneLayout) -> np.ndarray:
    """Return the most that each run's size may be, so that no few numbers set it.

    A step that followed a few large numbers would lose the others of their row.
    """
    whole = values.size // lanes.run * lanes.run
    parts = [np.abs(values[:whole]).reshape(-1, lanes.run)]
    if whole < values.size:
        parts.append(np.abs(values[None, whole:]))
    medians = np.concatenate([_medians(part) for part in parts])
    largest = np.concatenate([part.max(axis=1) for part in parts]).astype(np.float64)
    # The largest number must stay in range; a row that is mostly zeros loses nothing.
    bound = np.maximum(_MEDIANS * medians, largest * 2.0**-16)
    return np.where(medians > 0, bound, np.inf)


def _medians(rows: np.ndarray) -> np.ndarray:
    # In the type of the numbers, which sorts twice as fast as float64.
    middle = rows.shape[1] // 2
    pair = [middle - 1 + rows.shape[1] % 2, middle]
    return np.partition(rows, pair, axis=1)[:, pair].astype(np.float64).mean(axis=1)


def split_chunks(
    array: np.ndarray,
    step: Step,
    scaling: RowScaling | ChannelScaling | None = None,
    *,
    trellis: bool = True,
) -> Iterator[grid.GridInput]:
    """Cut an array into the chunks that `encode_grid` codes."""
    flat, row = array.reshape(-1), row_length(array.shape)
    numbers = numbers_per_chunk(str(grid.Form()), array.shape)
    for first in range(0, len(flat), numbers):
        values = flat[first : first + numbers]
        if isinstance(scaling, ChannelScaling):
            yield scaling.cut(values, first, step)
            continue
        lanes = grid.LaneLayout.of_rows(len(values), row)
        exponents = None if scaling is None else scaling.exponents(values, lanes)
        classes = grid.classify_runs(values, lanes, exponents)
        yield grid.GridInput(values, step, lanes, classes, exponents, trellis=trellis)


def encode_grid(chunks: Iterable[grid.GridInput]) -> CodedBlocks:
    """Code chunks; small neighbours side by side, which is faster."""
    for group in batches(chunks, lambda chunk: chunk.lanes.count, _MAX_LANES):
        yield from _encode_group(group)


def _encode_group(
    chunks: Sequence[grid.GridInput],
) -> Iterator[tuple[bytes, np.ndarray] | None]:
    quantised = grid.quantise(chunks)
    fitting = [levels for levels in quantised if levels is not None]
    blocks = iter(grid.encode(fitting) if fitting else ())
    for levels in quantised:
        if levels is None:
            yield None
        else:
            yield next(blocks), levels.values
