"""Decode tensors from the chunks of an `.fxz` file; every length in them is checked."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

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


class _Chunk(NamedTuple):
    """A coded chunk: its tensor, its place there, how many numbers, its bytes."""

    record: Record
    at: int
    size: int
    block: memoryview


def iter_parts(
    content: FileContent, record: Record
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the place and the flat values of each chunk; only one is in memory.

    The digest is compared after the last chunk, when all were yielded.
    """
    digest = Digest()
    for chunk in _read_chunks(content, record):
        for _, values in _decode(content, [chunk]):
            digest.update(values)
            yield chunk.at, values
    _compare_digest(digest.hexdigest(), record)


def decode_tensors(
    content: FileContent, records: Sequence[Record], *, check_exact: bool = True
) -> Iterator[tuple[Record, np.ndarray]]:
    """Decode tensors, the small ones side by side, and compare each with its digest."""
    for record in records:
        if not record.size:
            yield record, np.empty(record.shape, dtype_from_name(record.dtype))
    chunks = (chunk for record in records for chunk in _read_chunks(content, record))
    # Groups cut across tensors: a tensor is complete once the last of its chunks is, in
    # whichever group that may be.
    started: dict[str, np.ndarray] = {}
    remaining = {record.name: record.size for record in records}
    for (record, at, size, _), values in _decode(content, chunks):
        flat = values
        if size < record.size or record.codec == "stored":  # a view of the file
            flat = started.get(record.name)
            if flat is None:
                flat = started[record.name] = np.empty(record.size, values.dtype)
            flat[at : at + size] = values
        remaining[record.name] -= size
        if not remaining[record.name]:
            started.pop(record.name, None)
            if check_exact or record.form is not None:
                _compare_digest(compute_digest(flat), record)
            yield record, flat.reshape(record.shape)


def _decode(
    content: FileContent, chunks: Iterable[_Chunk]
) -> Iterator[tuple[_Chunk, np.ndarray]]:
    """Yield the flat values of chunks; those of integers are decoded side by side."""
    coded: list[_Chunk] = []
    blocks: list[grid.ParsedBlock] = []
    for chunk in chunks:
        record = chunk.record
        with name_errors(f"tensor {record.name!r}"):
            if record.form is None:
                values = _decode_exact(chunk)
            else:
                coded.append(chunk)
                blocks.append(grid.parse(chunk.block, chunk.size, record.form))
                continue
        yield chunk, values
    for group in grid.group_blocks(blocks):
        content.check()  # blocks are still views of the file
        dtypes = [dtype_from_name(coded[i].record.dtype) for i in group]
        levels = [
            np.empty(coded[i].size, compute_type(dtype))
            for i, dtype in zip(group, dtypes, strict=True)
        ]
        confirmed = grid.decode_blocks([blocks[i] for i in group], levels)
        for i, dtype, of_chunk in zip(group, dtypes, levels, strict=True):
            record, block = coded[i].record, blocks[i]
            assert record.step is not None  # checked when the header was read
            with name_errors(f"tensor {record.name!r}"):
                next(confirmed)
            values = grid.scale_runs(
                of_chunk, record.step, dtype, block.lanes.run, block.exponents
            )
            yield coded[i], _turn_back(values, record)


def _decode_exact(chunk: _Chunk) -> np.ndarray:
    dtype = dtype_from_name(chunk.record.dtype)
    if chunk.record.codec == "lossless":
        return lossless.decode(chunk.block, dtype, chunk.size)
    if len(chunk.block) != chunk.size * dtype.itemsize:
        raise CorruptFileError("a stored chunk has the wrong length.")
    # A view of the file, which keeps its map open for as long as it lives.
    return np.frombuffer(chunk.block, dtype)


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
        for _, at, size, block in _read_chunks(content, record):
            parsed = grid.parse(block, size, record.form)
            decoded = grid.decode_integers(parsed, working)
            flat[at : at + size] = _turn_back(decoded, record)
            if parsed.exponents is not None:
                units = grid.run_units(parsed.exponents, record.step, working)
                every = parsed.lanes.repeat(units)
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


def _read_chunks(content: FileContent, record: Record) -> Iterator[_Chunk]:
    numbers = numbers_per_chunk(record.codec, record.shape)
    for i, chunk in enumerate(record.chunks):
        at = i * numbers
        with name_errors(f"tensor {record.name!r}"):
            block = content.read_chunk(chunk)
        yield _Chunk(record, at, min(numbers, record.size - at), block)


def verify_chunks(content: FileContent, record: Record) -> None:
    """Compare every chunk of a tensor with its own checksum, without decoding."""
    unverified = dataclasses.replace(content, verified=False)
    with name_errors(f"tensor {record.name!r}"):
        for chunk in record.chunks:
            unverified.read_chunk(chunk)


def _compare_digest(digest: str, record: Record) -> None:
    # Damage that every checksum missed, or a decoder that differs from the writer's.
    if digest != record.digest:
        raise CorruptFileError(
            f"tensor {record.name!r}: its values are not the ones that were written."
        )


def _turn_back(values: np.ndarray, record: Record) -> np.ndarray:
    """Return the flat numbers of a chunk row by row, if it has them by columns."""
    if record.form is None or not record.form.columns:
        return values
    columns = values.reshape(row_length(record.shape), -1)
    return grid.transpose(columns).reshape(-1)
