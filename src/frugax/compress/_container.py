"""The `.fxz` file: prelude, data, header, footer. The words are in docs/container.md.

Reading trusts nothing: every length and offset is checked against the file before
anything is allocated, no class is named, no code runs. Writing is in `_writer.py`.
"""

import dataclasses
import functools
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any

from frugax.errors import CorruptFileError, UnsupportedFileError

from ._arrays import DTYPE_NAMES, QUANTISABLE, dtype_named
from ._error import Error
from ._quantised import LEAST_STEP, Step
from ._zstd import unzstd

# Not text (high bit), and damaged by line-end conversion: PNG's trick.
MAGIC = b"\x89FXZ\r\n\x1a\n"
VERSION = 1
CODECS = ("lossless", "planes", "quantised", "stored", "trellis")
# Codecs whose values are whole numbers times a step.
STEPPED = ("planes", "quantised", "trellis")
# Bit planes of one tensor; levels have 52 bits at most.
MOST_PLANES = 52
BLOCK = 1 << 22  # numbers in one chunk: at most 32 MiB decoded
ALIGN = 64
_MOST_HEADER = 64 << 20
_PIECE = 1 << 24  # bytes of a file that are read at once
# A file may say it holds at most this many bytes for each of its own, past 64 MiB;
# what shrinks more is padded. So a small file can never ask for much memory.
MOST_RATIO, FREE_BYTES = 4096, 64 << 20
# Magic, u16 version, zeros to the first multiple of `ALIGN`, where the data starts.
PRELUDE = struct.pack("<8sH54x", MAGIC, VERSION)
# u64 header bytes in the file, u64 as JSON, u32 CRC, 4 zero bytes, u64 length of the
# whole file, SHA-256 of all before.
_FOOTER = struct.Struct("<QQI4xQ32s")


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Where one coded block stands: bytes from the start of the data, and its CRC."""

    offset: int
    length: int
    crc32: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """What a tensor is once this layer of it is read, and all before.

    Attributes:
        rel_error: ||decoded - original|| / ||original||, rounded up to 4 digits.
        max_abs: largest |decoded - original|, rounded up to 4 digits.
        digest: BLAKE2b-128 of the decoded little-endian bytes, in hex.
    """

    rel_error: float
    max_abs: float
    digest: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the header says of one tensor.

    Attributes:
        name: the leaf's name in the tree.
        dtype: one of `DTYPE_NAMES`.
        shape: its shape.
        codec: one of `CODECS`.
        step: what the values are multiples of; None if they are exact.
        rel_error: ||decoded - original|| / ||original||, rounded up to 4 digits.
        max_abs: largest |decoded - original|, rounded up to 4 digits.
        digest: BLAKE2b-128 of the decoded little-endian bytes, in hex.
        chunks: one for every `chunk_numbers`, the last perhaps shorter; with the
            codec `"planes"` such a row of them for each layer.
        planes: how many bit planes `"planes"` has; 0 with any other codec.
        layers: one for each plane, and one more where the last makes it exact.
        norm: ||original|| of a finite float tensor in a progressive file; else None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    step: Step | None
    rel_error: float
    max_abs: float
    digest: str
    chunks: tuple[Chunk, ...]
    planes: int = 0
    layers: tuple[Layer, ...] = ()
    norm: float | None = None

    def up_to(self, layers: int) -> "Record":
        """The tensor as it is when only so many of its layers are read; >= 1."""
        last, each = self.layers[layers - 1], len(self.chunks) // len(self.layers)
        return dataclasses.replace(
            self,
            rel_error=last.rel_error,
            max_abs=last.max_abs,
            digest=last.digest,
            chunks=self.chunks[: layers * each],
            layers=self.layers[:layers],
        )

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes once decoded."""
        return self.size * dtype_named(self.dtype).itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file, without header and padding."""
        return sum(chunk.length for chunk in self.chunks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says of itself.

    Attributes:
        structure: how the tree is built; see `frugax.trees.describe`.
        tensors: one record for each leaf, in the tree's order.
        data_bytes: length of the data.
        data_start: where the data begins, in bytes from the start of the file.
        version: of the format.
    """

    structure: Any
    tensors: tuple[Record, ...]
    data_bytes: int
    data_start: int = len(PRELUDE)
    version: int = VERSION


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """One tensor, ready to be written.

    Attributes:
        record: what the header will say of it; without chunks.
        blocks: its coded bytes, one for each `chunk_numbers`; layer by layer.
        error: how far its decoded values are from the original ones.
    """

    record: Record
    blocks: tuple[bytes, ...]
    error: Error


# The digest that a record keeps of a tensor's decoded bytes, to be fed piece by piece.
Digest = functools.partial(hashlib.blake2b, digest_size=16)


def row_of(shape: tuple[int, ...]) -> int:
    """How many numbers are in a row, that is, share their first index."""
    return max(1, math.prod(shape[1:])) if len(shape) > 1 else 256


def chunk_numbers(codec: str, shape: tuple[int, ...]) -> int:
    """How many numbers are in each chunk but the last.

    At most `BLOCK`; whole rows with the trellis codec, whose classes are of rows.
    """
    row = row_of(shape)
    return BLOCK // row * row if codec == "trellis" and row <= BLOCK else BLOCK


def digest_of(data: Any) -> str:
    """The digest of a tensor's decoded bytes."""
    return Digest(data).hexdigest()


def tail_of(packed: bytes, plain_bytes: int, before: int) -> bytes:
    """Header and footer, but for the SHA-256 that ends the file.

    Args:
        packed: the header, compressed.
        plain_bytes: its length before that.
        before: the bytes of the file so far.
    """
    total = before + len(packed) + _FOOTER.size
    crc = _header_crc(packed, plain_bytes)
    footer = _FOOTER.pack(len(packed), plain_bytes, crc, total, bytes(32))
    return packed + footer[:-32]


def read_header(file: memoryview) -> Header:
    """Read and check everything but the data itself.

    Raises:
        CorruptFileError: the file is damaged, cut off, or contradicts itself.
        UnsupportedFileError: it is no `.fxz` file, or of a newer version.
    """
    start = bytes(file[: len(PRELUDE)])
    if not start.startswith(MAGIC):
        if MAGIC.startswith(start):
            raise CorruptFileError("the file is cut off: copy it again.")
        raise UnsupportedFileError("this is no .fxz file: it starts differently.")
    if len(file) < len(PRELUDE) + _FOOTER.size:
        raise CorruptFileError("the file is cut off: copy it again.")
    version = int.from_bytes(start[8:10], "little")
    if version != VERSION:
        raise UnsupportedFileError(
            f"the file has format version {version}, and this frugax reads {VERSION}: "
            "update frugax (or the file is damaged)."
        )
    footer = _FOOTER.unpack_from(file, len(file) - _FOOTER.size)
    packed_bytes, plain_bytes, crc, total, _ = footer
    if total != len(file):
        raise CorruptFileError("the file is cut off or too long: copy it again.")
    data_bytes = total - len(PRELUDE) - packed_bytes - _FOOTER.size
    if data_bytes < 0 or plain_bytes > _MOST_HEADER:
        raise CorruptFileError("the header does not fit in the file.")
    end = len(PRELUDE) + data_bytes
    packed = bytes(file[end : end + packed_bytes])
    if start != PRELUDE or _header_crc(packed, plain_bytes) != crc:
        raise CorruptFileError("the header is damaged: copy the file again.")
    plain = unzstd(packed, most=plain_bytes)
    return _header(_load_json(plain), data_bytes)


def _header_crc(packed: bytes, plain_bytes: int) -> int:
    return zlib.crc32(packed + struct.pack("<Q", plain_bytes))


def check_whole(file: memoryview, after_each: Callable[[], None]) -> None:
    """Compare the SHA-256 of the whole file with its footer.

    Args:
        file: all of it.
        after_each: called when another piece has been read.

    Raises:
        CorruptFileError: they differ.
    """
    end = len(file) - 32
    found = hashlib.sha256()
    for at in range(0, end, _PIECE):
        found.update(file[at : min(end, at + _PIECE)])
        after_each()
    if found.digest() != bytes(file[end:]):
        raise CorruptFileError("the file's bytes are damaged: copy it again.")


def block_of(file: memoryview, header: Header, chunk: Chunk) -> memoryview:
    """The bytes of one chunk.

    Raises:
        CorruptFileError: its checksum is wrong.
    """
    start = header.data_start + chunk.offset
    block = file[start : start + chunk.length]
    if zlib.crc32(block) != chunk.crc32:
        raise CorruptFileError("its bytes are damaged: copy the file again.")
    return block


def _load_json(plain: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands twice")
        return found

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is no number")

    try:
        return json.loads(plain, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as e:
        raise CorruptFileError(f"the header is no JSON: {e}.") from e


def _header(data: Any, data_bytes: int) -> Header:
    match data:
        case {"structure": structure, "tensors": list(items)}:
            records = tuple(_record(item, data_bytes) for item in items)
        case _:
            raise CorruptFileError("the header lacks its structure or its tensors.")
    if len({r.name for r in records}) != len(records):
        raise CorruptFileError("the header names a tensor twice.")
    spans = sorted((c.offset, c.length) for r in records for c in r.chunks)
    at = 0
    for offset, length in spans:
        if offset < at:
            raise CorruptFileError("two chunks of the file overlap.")
        at = offset + length
    decoded = sum(record.nbytes for record in records)
    if decoded > max(FREE_BYTES, MOST_RATIO * max(0, data_bytes)):
        raise CorruptFileError(
            f"the file says it holds {decoded} bytes, over {MOST_RATIO} for each of "
            "its own: no frugax wrote it."
        )
    return Header(structure=structure, tensors=records, data_bytes=data_bytes)


def _record(item: Any, data_bytes: int) -> Record:
    match item:
        case {
            "chunks": list(chunks),
            "codec": str(codec),
            "digest": str(digest),
            "dtype": str(dtype),
            "name": str(name),
            "shape": list(shape),
        }:
            pass
        case _:
            raise CorruptFileError("the header has a tensor without its six keys.")
    if codec not in CODECS or dtype not in DTYPE_NAMES:
        raise UnsupportedFileError(
            f"tensor {name!r} has the codec {codec!r} and the dtype {dtype!r}, which "
            "this version does not know: update frugax."
        )
    if not all(_is_whole(n) for n in shape) or len(shape) > 64:
        raise CorruptFileError(f"tensor {name!r} has the shape {shape!r:.80}.")
    record = Record(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        codec=codec,
        step=_step(item, name) if codec in STEPPED else None,
        rel_error=_error(item, name, "rel_error"),
        max_abs=_error(item, name, "max_abs"),
        digest=digest,
        chunks=tuple(_chunk(c, name, data_bytes) for c in chunks),
        planes=_planes(item, name) if codec == "planes" else 0,
        layers=_layers(item, name) if codec == "planes" else (),
        norm=_error(item, name, "norm") if "norm" in item else None,
    )
    each = -(-record.size // chunk_numbers(codec, record.shape))
    sound = len(chunks) == each * (len(record.layers) if record.planes else 1)
    if record.planes:
        sound = sound and len(record.layers) - record.planes in (0, 1)
        # Values between two levels are told in half steps.
        halved = record.step is not None and record.step.exponent > LEAST_STEP.exponent
        sound = sound and halved and record.size > 0
        # What is said of the whole is said of the last layer.
        sound = sound and record.up_to(len(record.layers)) == record
    if codec == "stored":
        sound = sound and record.stored_bytes == record.nbytes
    if not sound:
        raise CorruptFileError(f"tensor {name!r}: its chunks do not make its shape.")
    return record


def _chunk(item: Any, name: str, data_bytes: int) -> Chunk:
    match item:
        case [int(offset), int(length), int(crc)] if all(map(_is_whole, item)):
            if length and offset + length <= data_bytes:
                return Chunk(offset, length, crc)
    raise CorruptFileError(f"tensor {name!r} has a chunk outside the file.")


def _step(item: dict[str, Any], name: str) -> Step:
    match item:
        case {"step": [int(mantissa), int(exponent)], "dtype": str(dtype)}:
            if dtype in QUANTISABLE:
                try:
                    return Step(mantissa, exponent)
                except ValueError as e:
                    raise CorruptFileError(f"tensor {name!r} has {e}") from e
    raise CorruptFileError(f"tensor {name!r} is quantised without a step.")


def _planes(item: dict[str, Any], name: str) -> int:
    match item:
        case {"planes": int(planes)} if 1 <= planes <= MOST_PLANES:
            return planes
    raise CorruptFileError(f"tensor {name!r} has no number of planes.")


def _layers(item: dict[str, Any], name: str) -> tuple[Layer, ...]:
    match item:
        case {"layers": [_, *_] as layers}:
            return tuple(_layer(layer, name) for layer in layers)
    raise CorruptFileError(f"tensor {name!r} has planes without layers.")


def _layer(item: Any, name: str) -> Layer:
    match item:
        case [int() | float() as rel_error, int() | float() as max_abs, str(digest)]:
            return Layer(
                _size(rel_error, name, "rel_error"),
                _size(max_abs, name, "max_abs"),
                digest,
            )
    raise CorruptFileError(f"tensor {name!r} has the layer {item!r:.80}.")


def _error(item: dict[str, Any], name: str, key: str) -> float:
    return _size(item.get(key, 0), name, key)


def _size(value: Any, name: str, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise CorruptFileError(f"tensor {name!r} has the {key} {value!r:.40}.")
    try:
        return float(value)
    except OverflowError as e:
        raise CorruptFileError(f"tensor {name!r} has the {key} {value!r:.40}.") from e


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48
