"""Decode tensors from the chunks of an `.fxz` file; every length in them is checked."""

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from frugax.errors import CorruptFileError

from ..arrays import dtype_from_name
from ..codecs import (
    compute_type,
    grid,
    lossless,
    numbers_per_chunk,
    row_length,
)
from ._layout import FileContent, name_errors
from ._metadata import Digest, Record, compute_digest


def iter_parts(
    content: FileContent, record: Record, *, check_values: bool = True
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the place and the flat values of each chunk; only one is in memory.

    The digest is compared after the last chunk, when all were yielded.
    """
    digest = Digest()
    with name_errors(f"tensor {record.name!r}"):
        for at, part in _decode_chunks(content, record):
            if check_values:
                digest.update(part)
            yield at, part
        if check_values:
            _compare_digest(digest.hexdigest(), record)


def decode_tensors(
    content: FileContent, records: Sequence[Record], *, check_exact: bool = True
) -> Iterator[tuple[Record, np.ndarray]]:
    """Decode tensors, the small ones side by side, and compare each with its digest."""
    parts: list[tuple[Record, int]] = []
    blocks: list[grid.ParsedBlock] = []
    for record in records:
        form = record.form
        if form is None:
            yield record, _decode_exact(content, record, check_values=check_exact)
            continue
        with name_errors(f"tensor {record.name!r}"):
            for at, size, block in _read_chunks(content, record):
                blocks.append(grid.parse(block, size, form))
                parts.append((record, at))
    started: dict[str, np.ndarray] = {}
    # Groups cut across tensors: a tensor is complete once the last of its chunks is, in
    # whichever group that may be.
    remaining = collections.Counter(record.name for record, _ in parts)
    for group in grid.group_blocks(blocks):
        content.check()  # blocks are still views of the file
        # Levels are decoded into the tensors and multiplied in place, where the dtype
        # is the one that multiplies.
        levels: list[np.ndarray] = []
        for i in group:
            record, at = parts[i]
            dtype = dtype_from_name(record.dtype)
            if record.name not in started:
                started[record.name] = np.empty(record.size, dtype)
            flat = started[record.name]
            size = blocks[i].lanes.size
            # Columns are put into their places once they are decoded.
            if dtype == compute_type(dtype) and not _by_columns(record):
                levels.append(flat[at : at + size])
            else:
                levels.append(np.empty(size, compute_type(dtype)))
        confirmed = grid.decode_blocks([blocks[i] for i in group], levels)
        for i, of_part in zip(group, levels, strict=True):
            record, at = parts[i]
            flat = started[record.name]
            assert record.step is not None  # checked when the header was read
            with name_errors(f"tensor {record.name!r}"):
                next(confirmed)
                run, exponents = blocks[i].lanes.run, blocks[i].exponents
                values = grid.scale_runs(
                    of_part, record.step, flat.dtype, run, exponents
                )
                if _by_columns(record):
                    columns = values.reshape(row_length(record.shape), -1)
                    place = flat[at : at + len(values)]
                    grid.transpose(columns, place.reshape(columns.shape[::-1]))
                elif values is not of_part:
                    flat[at : at + len(values)] = values
                remaining[record.name] -= 1
                if remaining[record.name]:
                    continue
                del started[record.name]
                _compare_digest(compute_digest(flat), record)
            yield record, flat.reshape(record.shape)


def decode_integers(
    content: FileContent, record: Record
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the integers and the steps whose product is a tensor."""
    if record.form is None or record.step is None:
        return None
    dtype = dtype_from_name(record.dtype)
    working = compute_type(dtype)
    # int64 holds the levels of every codec, up to 2^52 for float64 weights.
    flat = np.empty(record.size, np.int64)
    steps: list[np.ndarray] = []
    with name_errors(f"tensor {record.name!r}"):
        for at, size, block in _read_chunks(content, record):
            parsed = grid.parse(block, size, record.form)
            decoded = grid.decode_integers(parsed, working)
            flat[at : at + size] = _turn_back(decoded, record)
            if parsed.exponents is not None:
                units = grid.run_scales(parsed.exponents) * record.step.size
                every = parsed.lanes.repeat(units.astype(working))
                steps.append(_turn_back(every, record))
    largest = max(int(flat.max(initial=0)), -int(flat.min(initial=0)))
    smallest = np.min_scalar_type(-largest - 1)
    integers = flat.astype(smallest).reshape(record.shape)
    if not steps:
        return integers, np.asarray(record.step.size, working)
    every = np.concatenate(steps).reshape(record.shape)
    if (every == every.flat[0]).all():
        return integers, np.asarray(every.flat[0])
    # One for each row or column, where the runs of the coder do not cut them in pieces.
    for along in ((slice(None), *[slice(1)] * (every.ndim - 1)), (slice(1),)):
        if (every == every[along]).all():
            return integers, every[along]
    return integers, every


def decode_rows(
    content: FileContent, record: Record, start: int, stop: int
) -> np.ndarray:
    """Return some rows; only the chunks that they stand in are decoded."""
    row = math.prod(record.shape[1:])
    first, last = start * row, stop * row
    flat = np.empty(last - first, dtype_from_name(record.dtype))
    with name_errors(f"tensor {record.name!r}"):
        for at, part in _decode_chunks(content, record, first, last):
            low, high = max(first, at), min(last, at + part.size)
            flat[low - first : high - first] = part[low - at : high - at]
    return flat.reshape(stop - start, *record.shape[1:])


def _read_chunks(
    content: FileContent, record: Record, first: int = 0, last: int | None = None
) -> Iterator[tuple[int, int, memoryview]]:
    """Yield place, size and bytes of the chunks that have the numbers of a range."""
    numbers = numbers_per_chunk(record.codec, record.shape)
    last = record.size if last is None else last
    for i in range(first // numbers, -(-last // numbers)):
        at = i * numbers
        size = min(numbers, record.size - at)
        yield at, size, content.read_chunk(record.chunks[i])


def verify_chunks(content: FileContent, record: Record) -> None:
    """Compare every chunk of a tensor with its own checksum, without decoding."""
    unverified = dataclasses.replace(content, verified=False)
    with name_errors(f"tensor {record.name!r}"):
        for chunk in record.chunks:
            unverified.read_chunk(chunk)


def _compare_digest(digest: str, record: Record) -> None:
    # Damage that every checksum missed, or a decoder that differs from the writer's.
    if digest != record.digest:
        raise CorruptFileError("its values are not the ones that were written.")


def _by_columns(record: Record) -> bool:
    return record.form is not None and record.form.columns


def _turn_back(values: np.ndarray, record: Record) -> np.ndarray:
    """Return the flat numbers of a chunk row by row, if it has them by columns."""
    if not _by_columns(record):
        return values
    columns = values.reshape(row_length(record.shape), -1)
    return grid.transpose(columns).reshape(-1)


def _decode_exact(
    content: FileContent, record: Record, *, check_values: bool
) -> np.ndarray:
    parts = iter_parts(content, record, check_values=check_values)
    # One chunk is decoded in place of a copy, unless it is stored: the values would be
    # a view of the file.
    if len(record.chunks) == 1 and record.codec != "stored":
        ((_, flat),) = parts
        return flat.reshape(record.shape)
    # Safe to allocate: a header that states far more than the file can hold was
    # refused.
    flat = np.empty(record.size, dtype_from_name(record.dtype))
    for at, part in parts:
        flat[at : at + part.size] = part
    return flat.reshape(record.shape)


def _decode_chunks(
    content: FileContent, record: Record, first: int = 0, last: int | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield place and flat values of the chunks that have the numbers of a range."""
    dtype = dtype_from_name(record.dtype)
    for at, size, block in _read_chunks(content, record, first, last):
        if record.codec == "lossless":
            yield at, lossless.decode(block, dtype, size)
        elif record.step is not None and record.form is not None:
            values = grid.decode(block, record.step, dtype, size, record.form)
            yield at, _turn_back(values, record)
        elif len(block) == size * dtype.itemsize:
            # A view of the file, which keeps its map open for as long as it lives.
            yield at, np.frombuffer(block, dtype)
        else:
            raise CorruptFileError("a stored chunk has the wrong length.")
