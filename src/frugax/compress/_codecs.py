"""A tensor to blocks and back, by the name of its codec."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np

from frugax.errors import CorruptFileError, UnsupportedFileError

from . import _lossless, _planes, _quantised, _trellis_block
from ._arrays import dtype_named
from ._container import (
    BLOCK,
    Digest,
    Header,
    Record,
    block_of,
    chunk_numbers,
    row_of,
)
from ._quantised import Step
from ._trellis_lanes import Lanes, quantise, run_classes


def lossless_blocks(array: np.ndarray) -> tuple[str, tuple[bytes, ...]]:
    """The exact coding of an array: codec and blocks, `"stored"` if none is shorter.

    Of several blocks it is always lossless, at worst 0.01% longer, so that writing one
    need not wait for the next.
    """
    flat = array.reshape(-1)
    parts = [flat[i : i + BLOCK] for i in range(0, len(flat), BLOCK)]
    blocks = tuple(_lossless.encode(part) for part in parts)
    if len(blocks) > 1 or sum(map(len, blocks)) < array.nbytes:
        return "lossless", blocks
    return "stored", tuple(part.tobytes() for part in parts)


def stepped_blocks(
    array: np.ndarray, codec: str, step: Step
) -> Iterator[tuple[bytes, np.ndarray] | None]:
    """Code an array with a step, chunk by chunk; None where some number is too large.

    Yields:
        The bytes of each chunk, and the values that they stand for.
    """
    flat = array.reshape(-1)
    numbers = chunk_numbers(codec, array.shape)
    for first in range(0, len(flat), numbers):
        part = flat[first : first + numbers]
        if codec == "trellis":
            lanes = Lanes.of_rows(len(part), row_of(array.shape))
            coded = quantise(part, step, lanes, run_classes(part, lanes))
            if coded is None:
                yield None
                return
            levels, block = coded.flat, _trellis_block.encode(coded)
        else:
            levels = _quantised.levels_of(part, step)
            if levels is None:
                yield None
                return
            block = _quantised.encode(levels)
        yield block, _quantised.values_of(levels, step, array.dtype)


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
    try:
        for i in range(each):
            blocks = [block_of(file, header, c) for c in record.chunks[i::each]]
            size = min(numbers, record.size - i * numbers)
            part = _decode_chunk(blocks, record, size)
            digest.update(part.view(np.uint8).data)
            yield part
        if digest.hexdigest() != record.digest:
            raise CorruptFileError("its values are not the ones that were written.")
    except CorruptFileError as e:
        raise CorruptFileError(f"tensor {record.name!r}: {e.args[0]}") from e
    except UnsupportedFileError as e:
        raise UnsupportedFileError(f"tensor {record.name!r}: {e.args[0]}") from e


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
    try:
        for i, chunk in enumerate(record.chunks):
            part = flat[i * numbers : (i + 1) * numbers]
            block = block_of(file, header, chunk)
            part[:] = _stepped(record).integers(block, dtype, len(part))
    except CorruptFileError as e:
        raise CorruptFileError(f"tensor {record.name!r}: {e.args[0]}") from e
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
    return _trellis_block if record.codec == "trellis" else _quantised
