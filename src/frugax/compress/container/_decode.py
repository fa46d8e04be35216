"""The chunks of a file back to arrays; nothing that they say is believed unchecked."""

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np

from frugax.errors import CorruptFileError, UnsupportedFileError

from ..arrays._leaves import dtype_from_name
from ..codecs import _lossless, _planes, _uniform as _quantised
from ..codecs._blocks import BLOCK, numbers_per_chunk
from ..codecs._planes import decode_each_layer
from ..codecs._uniform import compute_type, times
from ..codecs.trellis import _decode as _trellis_decode
from ..codecs.trellis._decode import ParsedBlock, fill, groups, parse
from ._layout import Content
from ._metadata import Digest, Record, compute_digest


def decode_tensor(
    content: Content, record: Record, *, digested: bool = True
) -> np.ndarray:
    """Decode one tensor, checking every chunk and then the whole against its digest.

    Args:
        content: of a file.
        record: the tensor to decode.
        digested: whether to compare its values with their digest.

    Raises:
        CorruptFileError: its bytes are damaged; the message names the tensor.
        UnsupportedFileError: it uses a coder of a newer version.
    """
    alone = 0 < record.size <= numbers_per_chunk(record.codec, record.shape)
    if alone and record.codec != "stored":  # whose values are the file's own bytes
        (part,) = iter_parts(content, record, digested=digested)
        return part.reshape(record.shape)
    flat = np.empty(record.size, dtype_from_name(record.dtype))
    collections.deque(iter_parts(content, record, flat, digested=digested), 0)
    return flat.reshape(record.shape)


def iter_parts(
    content: Content,
    record: Record,
    into: np.ndarray | None = None,
    *,
    digested: bool = True,
) -> Iterator[np.ndarray]:
    """The flat values of a tensor, chunk by chunk; only one is in memory.

    They are all read before an error in the last one is found.

    Args:
        content: of a file.
        record: the tensor to decode.
        into: a flat array for all of them; by default each has one of its own.
        digested: whether to compare its values with their digest.

    Raises:
        CorruptFileError: its bytes are damaged; the message names the tensor.
        UnsupportedFileError: it uses a coder of a newer version.
    """
    numbers = numbers_per_chunk(record.codec, record.shape)
    each = -(-record.size // numbers)
    digest = Digest()
    for i in range(each):
        with named(record):
            blocks = [content.block(c) for c in record.chunks[i::each]]
            size = min(numbers, record.size - i * numbers)
            place = None if into is None else into[i * numbers :][:size]
            part = _decode_chunk(blocks, record, size, place)
        if digested:
            digest.update(part)
        yield part
    if digested:
        with named(record):
            compare(digest.hexdigest(), record)


def decode_tensors(
    content: Content, records: Sequence[Record], *, exact_too: bool = True
) -> Iterator[tuple[Record, np.ndarray]]:
    """Decode many tensors as `decode_tensor` does, the small ones side by side.

    Args:
        content: of a file.
        records: the tensors to decode.
        exact_too: whether exact values are compared with their digests as well. Where
            the SHA-256 of the file was right they are its bytes, in another order.

    Yields:
        Each of the records, in no order of theirs, and its tensor.

    Raises:
        CorruptFileError: some bytes are damaged; the message names the tensor.
        UnsupportedFileError: one uses a coder of a newer version.
    """
    parts: list[tuple[Record, int]] = []
    blocks: list[ParsedBlock] = []
    for record in records:
        if record.codec != "trellis":
            digested = exact_too or record.step is not None
            yield record, decode_tensor(content, record, digested=digested)
            continue
        numbers = numbers_per_chunk(record.codec, record.shape)
        with named(record):
            for i, chunk in enumerate(record.chunks):
                size = min(numbers, record.size - i * numbers)
                block = content.block(chunk)
                blocks.append(parse(block, size))
                parts.append((record, i * numbers))
    begun: dict[str, np.ndarray] = {}
    left = collections.Counter(record.name for record, _ in parts)
    for group in groups(blocks):
        content.check()  # blocks are views of the file still
        # Levels are decoded into the tensors, and multiplied where they stand.
        levels: list[np.ndarray] = []
        for i in group:
            record, at = parts[i]
            dtype = dtype_from_name(record.dtype)
            if record.name not in begun:
                begun[record.name] = np.empty(record.size, dtype)
            size = blocks[i].lanes.size
            place = begun[record.name][at : at + size]
            straight = dtype == compute_type(dtype)
            levels.append(place if straight else np.empty(size, compute_type(dtype)))
        filled = fill([blocks[i] for i in group], levels)
        for (record, at), of_part in zip(
            [parts[i] for i in group], levels, strict=True
        ):
            flat = begun[record.name]
            assert record.step is not None  # reading the header has seen to that
            with named(record):
                next(filled)
                values = times(of_part, record.step, flat.dtype)
                if values is not of_part:
                    flat[at : at + len(values)] = values
                left[record.name] -= 1
                if left[record.name]:
                    continue
                del begun[record.name]
                compare(compute_digest(flat), record)
            yield record, flat.reshape(record.shape)


@contextlib.contextmanager
def named(record: Record) -> Iterator[None]:
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


def compare(digest: str, record: Record) -> None:
    """See that the values of a tensor have its digest.

    Raises:
        CorruptFileError: they have not.
    """
    if digest != record.digest:
        raise CorruptFileError("its values are not the ones that were written.")


def decode_integers(content: Content, record: Record) -> np.ndarray | None:
    """The whole numbers whose product with `record.step` is a tensor, flat.

    For decoders on a device, which multiply there; None where the codec has none, and
    for planes, whose step depends on how many are read. The product is not compared
    with the digest here.

    Raises:
        CorruptFileError: its bytes are damaged; the message names the tensor.
    """
    if record.codec not in ("quantised", "trellis"):
        return None
    dtype = dtype_from_name(record.dtype)
    numbers = numbers_per_chunk(record.codec, record.shape)
    flat = np.empty(record.size, np.int64)
    with named(record):
        for i, chunk in enumerate(record.chunks):
            part = flat[i * numbers : (i + 1) * numbers]
            block = content.block(chunk)
            part[:] = _stepped(record).integers(block, dtype, len(part))
    return flat


def _decode_chunk(
    blocks: list[memoryview], record: Record, size: int, into: np.ndarray | None
) -> np.ndarray:
    """One row of chunks: several with planes, and one with any other codec.

    Raises:
        CorruptFileError: a stored chunk has the wrong length.
    """
    dtype, step = dtype_from_name(record.dtype), record.step
    if record.codec == "lossless":
        return _lossless.decode(blocks[0], dtype, size, into)
    if step is None:  # stored
        if len(blocks[0]) != size * dtype.itemsize:
            raise CorruptFileError("a stored chunk has the wrong length.")
        values = np.frombuffer(blocks[0], dtype)
    elif record.planes:
        values = _planes.decode(blocks, record.planes, step, dtype, size)
    else:
        values = _stepped(record).decode(blocks[0], step, dtype, size)
    if into is None:
        return values
    into[:] = values
    return into


def _stepped(record: Record) -> ModuleType:
    return _trellis_decode if record.codec == "trellis" else _quantised


def verify_chunks(content: Content, record: Record) -> None:
    """Compare every chunk of a tensor with its own checksum, and decode nothing.

    Raises:
        CorruptFileError: they differ; the message names the tensor.
    """
    each = dataclasses.replace(content, whole=False)
    with named(record):
        for chunk in record.chunks:
            each.block(chunk)


def verify_layers(content: Content, record: Record) -> None:
    """Decode a tensor of planes up to each of its layers, and compare the digests.

    Raises:
        CorruptFileError: one is not what was written; the message names the tensor.
        UnsupportedFileError: it uses a coder of a newer version.
    """
    step, dtype = record.step, dtype_from_name(record.dtype)
    if step is None or not record.planes:
        return
    digests = [Digest() for _ in record.layers]
    each = len(record.chunks) // len(record.layers)
    for i in range(each):
        with named(record):
            blocks = [content.block(c) for c in record.chunks[i::each]]
            size = min(BLOCK, record.size - i * BLOCK)
            layers = decode_each_layer(blocks, record.planes, step, dtype, size)
            for digest, values in zip(digests, layers, strict=True):
                digest.update(values)
    with named(record):
        for layer, digest in enumerate(digests, 1):
            compare(digest.hexdigest(), record.truncate(layer))
