"""A tensor to blocks and back, by the name of its codec."""

import collections
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

import numpy as np

from frugax.errors import CorruptFileError, UnsupportedFileError

from . import _lossless, _planes, _quantised, _trellis_block, _trellis_decode
from ._arrays import dtype_named
from ._container import (
    BLOCK,
    Digest,
    Header,
    Record,
    block_of,
    chunk_numbers,
    digest_of,
    row_of,
)
from ._mapped import let_go
from ._quantised import Step, values_of
from ._trellis_lanes import Lanes, Part, quantise, run_classes
from ._trellis_walk import Packed, groups

# Lanes of the trellis that are coded side by side, at most: some 100 MB of work.
_MOST_LANES = 2048
# The bytes of a chunk, and the values that they stand for; None where some number is
# too large for the codec.
Blocks = Iterator[tuple[bytes, np.ndarray] | None]


def lossless_blocks(array: np.ndarray) -> tuple[str, tuple[bytes, ...]]:
    """The exact coding of an array: codec and blocks, `"stored"` if none is shorter.

    Of several blocks it is always lossless, at worst 0.01% longer, so that writing one
    need not wait for the next.
    """
    flat = array.reshape(-1)
    blocks: list[bytes] = []
    for i in range(0, len(flat), BLOCK):
        part = flat[i : i + BLOCK]
        blocks.append(_lossless.encode(part))
        let_go(part)
    if len(blocks) > 1 or sum(map(len, blocks)) < array.nbytes:
        return "lossless", tuple(blocks)
    return "stored", (flat.tobytes(),) * len(blocks)


def trellis_parts(array: np.ndarray, step: Step) -> Iterator[Part]:
    """The chunks of an array, as `trellis_blocks` codes them."""
    flat, row = array.reshape(-1), row_of(array.shape)
    numbers = chunk_numbers("trellis", array.shape)
    for first in range(0, len(flat), numbers):
        values = flat[first : first + numbers]
        lanes = Lanes.of_rows(len(values), row)
        yield Part(values, step, lanes, run_classes(values, lanes))


def trellis_blocks(parts: Iterable[Part]) -> Blocks:
    """Code chunks with the trellis; small neighbours side by side, which is quicker."""
    group: list[Part] = []
    for part in parts:
        lanes = sum(other.lanes.count for other in group) + part.lanes.count
        if group and lanes > _MOST_LANES:
            yield from _trellis_group(group)
            group = []
        group.append(part)
    yield from _trellis_group(group)


def _trellis_group(parts: Sequence[Part]) -> list[tuple[bytes, np.ndarray] | None]:
    quantised = quantise(parts)
    blocks = iter(_trellis_block.encode([c for c in quantised if c is not None]))
    return [
        None
        if coded is None
        else (next(blocks), values_of(coded.flat, part.step, part.values.dtype))
        for part, coded in zip(parts, quantised, strict=True)
    ]


def uniform_blocks(array: np.ndarray, step: Step) -> Blocks:
    """Code an array with a uniform grid, chunk by chunk."""
    flat = array.reshape(-1)
    numbers = chunk_numbers("quantised", array.shape)
    for first in range(0, len(flat), numbers):
        levels = _quantised.levels_of(flat[first : first + numbers], step)
        if levels is None:
            yield None
        else:
            values = _quantised.values_of(levels, step, array.dtype)
            yield _quantised.encode(levels), values


def decode_tensor(file: memoryview, header: Header, record: Record) -> np.ndarray:
    """Decode one tensor, checking every chunk and then the whole against its digest.

    Args:
        file: the whole file.
        header: what it says of itself.
        record: the tensor to decode.

    Raises:
        CorruptFileError: its bytes are damaged; the message names the tensor.
        UnsupportedFileError: it uses a coder of a newer version.
    """
    flat = np.empty(record.size, dtype_named(record.dtype))
    at = 0
    for part in decoded_parts(file, header, record):
        flat[at : at + len(part)] = part
        at += len(part)
    return flat.reshape(record.shape)


def decoded_parts(
    file: memoryview, header: Header, record: Record
) -> Iterator[np.ndarray]:
    """The flat values of a tensor, chunk by chunk; only one is in memory.

    They are all read before an error in the last one is found.

    Raises:
        CorruptFileError: its bytes are damaged; the message names the tensor.
        UnsupportedFileError: it uses a coder of a newer version.
    """
    numbers = chunk_numbers(record.codec, record.shape)
    each = -(-record.size // numbers)
    digest = Digest()
    with _named(record):
        for i in range(each):
            blocks = [block_of(file, header, c) for c in record.chunks[i::each]]
            size = min(numbers, record.size - i * numbers)
            part = _decode_chunk(blocks, record, size)
            digest.update(part.view(np.uint8).data)
            yield part
        if digest.hexdigest() != record.digest:
            raise CorruptFileError("its values are not the ones that were written.")


def decode_tensors(
    file: memoryview, header: Header, records: Sequence[Record]
) -> Iterator[tuple[Record, np.ndarray]]:
    """Decode many tensors as `decode_tensor` does, the small ones side by side.

    Yields:
        Each of the records, in no order of theirs, and its tensor.

    Raises:
        CorruptFileError: some bytes are damaged; the message names the tensor.
        UnsupportedFileError: one uses a coder of a newer version.
    """
    parts: list[tuple[Record, int]] = []
    blocks: list[Packed] = []
    for record in records:
        if record.codec != "trellis":
            yield record, decode_tensor(file, header, record)
            continue
        numbers = chunk_numbers(record.codec, record.shape)
        with _named(record):
            for i, chunk in enumerate(record.chunks):
                size = min(numbers, record.size - i * numbers)
                block = block_of(file, header, chunk)
                blocks.append(_trellis_decode.parse(block, size))
                parts.append((record, i * numbers))
    begun: dict[str, np.ndarray] = {}
    left = collections.Counter(record.name for record, _ in parts)
    for group in groups(blocks):
        decoded = _trellis_decode.levels_of([blocks[i] for i in group])
        for record, at in (parts[i] for i in group):
            dtype = dtype_named(record.dtype)
            flat = begun.get(record.name)
            if flat is None:
                flat = begun[record.name] = np.empty(record.size, dtype)
            assert record.step is not None  # reading the header has seen to that
            with _named(record):
                levels = next(decoded)
                flat[at : at + len(levels)] = values_of(levels, record.step, dtype)
                left[record.name] -= 1
                if left[record.name]:
                    continue
                tensor = _checked(begun.pop(record.name), record)
            yield record, tensor


@contextlib.contextmanager
def _named(record: Record) -> Iterator[None]:
    """Whatever is wrong inside is wrong with this tensor.

    Raises:
        CorruptFileError: as inside, with the tensor's name before it.
        UnsupportedFileError: as inside, with the tensor's name before it.
    """
    try:
        yield
    except CorruptFileError as e:
        raise CorruptFileError(f"tensor {record.name!r}: {e.args[0]}") from e
    except UnsupportedFileError as e:
        raise UnsupportedFileError(f"tensor {record.name!r}: {e.args[0]}") from e


def _checked(flat: np.ndarray, record: Record) -> np.ndarray:
    """The tensor, if it is the one that was written.

    Raises:
        CorruptFileError: it is another one.
    """
    if digest_of(flat.view(np.uint8)) != record.digest:
        raise CorruptFileError("its values are not the ones that were written.")
    return flat.reshape(record.shape)


def integers_of(file: memoryview, header: Header, record: Record) -> np.ndarray | None:
    """The whole numbers whose product with `record.step` is a tensor, flat.

    For decoders on a device, which multiply there; None where the codec has none, and
    for planes, whose step depends on how many are read. The product is not compared
    with the digest here.

    Raises:
        CorruptFileError: its bytes are damaged; the message names the tensor.
    """
    if record.codec not in ("quantised", "trellis"):
        return None
    dtype = dtype_named(record.dtype)
    numbers = chunk_numbers(record.codec, record.shape)
    flat = np.empty(record.size, np.int64)
    with _named(record):
        for i, chunk in enumerate(record.chunks):
            part = flat[i * numbers : (i + 1) * numbers]
            block = block_of(file, header, chunk)
            part[:] = _stepped(record).integers(block, dtype, len(part))
    return flat


def _decode_chunk(blocks: list[memoryview], record: Record, size: int) -> np.ndarray:
    """One row of chunks: several with planes, and one with any other codec.

    Raises:
        CorruptFileError: a stored chunk has the wrong length.
    """
    dtype = dtype_named(record.dtype)
    if record.planes:
        return _decode_planes(blocks, record, size)
    (block,) = blocks
    if record.codec == "stored":
        if len(block) != size * dtype.itemsize:
            raise CorruptFileError("a stored chunk has the wrong length.")
        return np.frombuffer(block, dtype)
    if record.step is None:
        return _lossless.decode(block, dtype, size)
    return _stepped(record).decode(block, record.step, dtype, size)


def _decode_planes(blocks: list[memoryview], record: Record, size: int) -> np.ndarray:
    dtype, step = dtype_named(record.dtype), record.step
    assert step is not None  # the header was read so
    shift = record.planes - 1
    levels = _planes.first(blocks[0], shift, dtype, size)
    for block in blocks[1 : record.planes]:
        levels = _planes.refined(levels, block)
        shift -= 1
    values = _planes.values_at(levels, shift, step, dtype)
    if len(blocks) > record.planes:
        values = _planes.whole(values, blocks[-1])
    return values


def _stepped(record: Record) -> ModuleType:
    return _trellis_decode if record.codec == "trellis" else _quantised
