"""The `.fxz` file: prelude, header, data, footer. The words are in docs/container.md.

Reading trusts nothing: every length and offset is checked against the file before
anything is allocated, no class is named, no code runs. Writing is deterministic: the
same tensors and steps give the same bytes, whatever the day or the machine (and the
same zstd library).
"""

import dataclasses
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import zstandard

from frugax.errors import CorruptFileError, UnsupportedFileError

from ._arrays import DTYPE_NAMES, QUANTISABLE, dtype_named
from ._error import Error
from ._quantised import Step
from ._zstd import unzstd

# Not text (high bit), and damaged by line-end conversion: PNG's trick.
MAGIC = b"\x89FXZ\r\n\x1a\n"
VERSION = 1
CODECS = ("lossless", "quantised", "stored", "trellis")
# Codecs whose values are whole numbers times a step.
STEPPED = ("quantised", "trellis")
BLOCK = 1 << 22  # numbers in one chunk: at most 32 MiB decoded
_ALIGN = 64
_MOST_HEADER = 64 << 20
# A file may say it holds at most this many bytes for each of its own, past 64 MiB;
# what shrinks more is padded. So a small file can never ask for much memory.
_MOST_RATIO, _FREE_BYTES = 4096, 64 << 20
# magic, u16 version, 2 zero bytes, u32 CRC, u64 header bytes in the file, u64 as JSON.
_PRELUDE = struct.Struct("<8sHHIQQ")
_FOOTER = struct.Struct("<Q32s")  # length of the whole file, SHA-256 of all before


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Where one coded block stands: bytes from the start of the data, and its CRC."""

    offset: int
    length: int
    crc32: int


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
        chunks: one for every `chunk_numbers`, the last perhaps shorter.
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
        data_start: where the data begins, in bytes from the start of the file.
        version: of the format.
    """

    structure: Any
    tensors: tuple[Record, ...]
    data_start: int
    version: int = VERSION


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """One tensor, ready to be written.

    Attributes:
        record: what the header will say of it; without chunks.
        blocks: its coded bytes, one for each `chunk_numbers`.
        error: how far its decoded values are from the original ones.
    """

    record: Record
    blocks: tuple[bytes, ...]
    error: Error


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
    """The digest that a record keeps of a tensor's decoded bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write(structure: Any, tensors: Sequence[Encoded]) -> bytes:
    """The whole file as bytes."""
    pieces: list[bytes] = []
    records: list[Record] = []
    at = 0
    for tensor in tensors:
        if tensor.record.codec == "stored":  # so that a mapped file can be used as is
            padding = -at % _ALIGN
            pieces.append(bytes(padding))
            at += padding
        chunks: list[Chunk] = []
        for block in tensor.blocks:
            chunks.append(Chunk(at, len(block), zlib.crc32(block)))
            at += len(block)
        pieces += tensor.blocks
        records.append(dataclasses.replace(tensor.record, chunks=tuple(chunks)))
    decoded = sum(record.nbytes for record in records)
    if decoded > _FREE_BYTES:
        pieces.append(bytes(max(0, -(-decoded // _MOST_RATIO) - at)))
    header = _canonical_json(
        {"structure": structure, "tensors": [_record_plain(r) for r in records]}
    )
    packed = zstandard.ZstdCompressor(level=19).compress(header)
    head = _PRELUDE.pack(MAGIC, VERSION, 0, 0, len(packed), len(header)) + packed
    crc = zlib.crc32(head)  # over the whole, its own field being zero
    head = _PRELUDE.pack(MAGIC, VERSION, 0, crc, len(packed), len(header)) + packed
    head += bytes(-len(head) % _ALIGN)
    body = b"".join([head, *pieces])
    total = (len(body) + _FOOTER.size).to_bytes(8, "little")
    return b"".join([body, total, hashlib.sha256(body + total).digest()])


def read_header(file: memoryview) -> Header:
    """Read and check everything but the data itself.

    Raises:
        CorruptFileError: the file is damaged, cut off, or contradicts itself.
        UnsupportedFileError: it is no `.fxz` file, or of a newer version.
    """
    if bytes(file[: len(MAGIC)]) != MAGIC:
        if MAGIC.startswith(bytes(file[: len(MAGIC)])):
            raise CorruptFileError("the file is cut off: copy it again.")
        raise UnsupportedFileError("this is no .fxz file: it starts differently.")
    if len(file) < _PRELUDE.size + _FOOTER.size:
        raise CorruptFileError("the file is cut off: copy it again.")
    _, version, _, crc, packed_bytes, json_bytes = _PRELUDE.unpack_from(file)
    if version != VERSION:
        raise UnsupportedFileError(
            f"the file has format version {version}, and this frugax reads {VERSION}: "
            "update frugax (or the file is damaged)."
        )
    total, _ = _FOOTER.unpack_from(file, len(file) - _FOOTER.size)
    if total != len(file):
        raise CorruptFileError("the file is cut off or too long: copy it again.")
    end = _PRELUDE.size + packed_bytes
    if end > len(file) - _FOOTER.size or json_bytes > _MOST_HEADER:
        raise CorruptFileError("the header does not fit in the file.")
    head = bytearray(file[:end])
    head[12:16] = bytes(4)
    if zlib.crc32(head) != crc:
        raise CorruptFileError("the header is damaged: copy the file again.")
    plain = unzstd(bytes(file[_PRELUDE.size : end]), most=json_bytes)
    start = end + -end % _ALIGN
    return _header(_load_json(plain), start, len(file) - _FOOTER.size - start)


def check_whole(file: memoryview) -> None:
    """Compare the SHA-256 of the whole file with its footer.

    Raises:
        CorruptFileError: they differ.
    """
    told = bytes(file[len(file) - 32 :])
    if hashlib.sha256(file[: len(file) - 32]).digest() != told:
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


def _canonical_json(data: Any) -> bytes:
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def _record_plain(record: Record) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "chunks": [[c.offset, c.length, c.crc32] for c in record.chunks],
        "codec": record.codec,
        "digest": record.digest,
        "dtype": record.dtype,
        "name": record.name,
        "shape": list(record.shape),
    }
    if record.step is not None:
        plain["step"] = [record.step.mantissa, record.step.exponent]
        plain["rel_error"] = record.rel_error
        plain["max_abs"] = record.max_abs
    return plain


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


def _header(data: Any, start: int, data_bytes: int) -> Header:
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
    if decoded > max(_FREE_BYTES, _MOST_RATIO * max(0, data_bytes)):
        raise CorruptFileError(
            f"the file says it holds {decoded} bytes, over {_MOST_RATIO} for each of "
            "its own: no frugax wrote it."
        )
    return Header(structure=structure, tensors=records, data_start=start)


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
    )
    sound = len(chunks) == -(-record.size // chunk_numbers(codec, record.shape))
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


def _error(item: dict[str, Any], name: str, key: str) -> float:
    value = item.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise CorruptFileError(f"tensor {name!r} has the {key} {value!r:.40}.")
    return float(value)


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48
