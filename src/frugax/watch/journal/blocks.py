"""Encode and decode the blocks of a journal file, each of which stands on its own.

    file    header (see `framing`), block, block, ...
    block   mark, frame(head), crc32 (u32) of the body, body
            mark, frame(head)               for kinds without a body

The head of a block is one of
    {"kind": "records", "stream": name, "first": k, "before": j, "n": n,
     "steps": [s, d], "columns": [column, ...], "packs": [length, ...]}
        k records were written before these n, j of them to the same stream
    {"kind": "rewind", "first": k, "step": s, "others": {stream: s}}
        records after step s are void, in each stream after its own s
    {"kind": "dropped", "first": k, "bytes": b}  b damaged bytes were cut off here;
                                              0: it had not been closed
    {"kind": "closed", "first": k, "streams": {stream: n}}
        the writer closed the file, after n records of each stream
"stream" is omitted for the training steps, and "before" where it equals k.

A column is [name, dtype, count] if it holds numbers, and otherwise
[name, dtype, count, shape, codec]. The body consists of zstd frames, whose lengths are
in "packs" (0: no frame). The first frame holds all numbers: the steps as differences,
unless "steps" says that they are s, s + d, ...; then for each column the bit mask of
the records that have it, if `count` is below n, and, for numbers, the values. Each
column of arrays follows in a frame of its own, so that it can be read alone.

A file yields nothing but data. Every length is checked against the bytes that are
there, and every size against its limit, before anything of that size is allocated.
"""

import dataclasses
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Shaped

from frugax.errors import CorruptFileError

from ._validation import (
    MAX_AXES,
    MAX_COLUMNS,
    MAX_NAME_LENGTH,
    MAX_RECORD_BYTES,
    fits_array,
)
from .framing import decode_frame, encode_frame
from .packing import (
    DTYPES,
    Codec,
    Column,
    PackedArray,
    compress,
    decompress,
    shuffle,
    unshuffle,
)

# Four bytes that are improbable in text and in small integers: after damage the reader
# searches for the next block by them.
MARK = b"\xf5BLK"
# At most this many records of a stream are lost by `kill -9`. Blocks of 50 to 64 steps
# pack nearly as well as whole runs, and far better than single records.
RECORDS_PER_BLOCK = 64
# The arrays of one block, unpacked; a single record may be larger.
MAX_BLOCK_BYTES = 4 * 2**20
# The largest head within the limits of `_validation`, rounded up.
_MAX_HEAD_BYTES = 4 * MAX_COLUMNS * (MAX_NAME_LENGTH + 30) + 16 * MAX_COLUMNS * MAX_AXES
_NUMBER_CODES = ("i8", "f4", "f8")
_CRC = struct.Struct("<I")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """One decoded block.

    Attributes:
        head: the head, checked.
        end: the offset of the first byte after the block.
        steps: the steps of a block of kind "records"; else empty.
        columns: the columns of a block of kind "records", by name; else empty.
    """

    head: dict[str, Any]
    end: int
    steps: Int64[np.ndarray, " n"]
    columns: dict[str, Column]

    @property
    def kind(self) -> str:
        """One of "records", "rewind", "dropped" and "closed"."""
        return self.head["kind"]

    @property
    def stream(self) -> str:
        """The stream of the records."""
        return self.head.get("stream", "")


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedColumn:
    """A column that is ready to be written into a block.

    Attributes:
        code: the name of the dtype.
        present: which records have a value; None if all have.
        values: the numbers; None for arrays.
        shape: the shape of one array; None for numbers.
        codec: the codec that packed the arrays.
        packed: the packed arrays.
    """

    code: str
    present: Bool[np.ndarray, " n"] | None
    values: Shaped[np.ndarray, " count"] | None = None
    shape: tuple[int, ...] | None = None
    codec: Codec = "plain"
    packed: bytes = b""


def encode_mark(head: dict[str, Any], *, salt: int = 0) -> bytes:
    """Encode a block without a body, that is of any kind but "records"."""
    return MARK + encode_frame(head, salt=salt)


def encode_records(
    head: dict[str, Any],
    steps: Int64[np.ndarray, " n"],
    columns: dict[str, EncodedColumn],
    *,
    salt: int = 0,
) -> bytes:
    """Encode a block of kind "records"."""
    n = len(steps)
    numbers: list[np.ndarray] = []
    first, last = int(steps[0]), int(steps[-1])
    stride = 1
    if n > 1:
        stride = int(steps[1]) - first
    # Compared as Python integers: differences of int64 may overflow.
    is_regular = last == first + (n - 1) * stride and steps.tolist() == [
        *range(first, last + 1, stride)
    ]
    described: list[Sequence[object]] = []
    packs = [b""]
    if not is_regular:
        with np.errstate(over="ignore"):  # wraps here, and back in the running sum
            differences = np.diff(steps)
        # Small differences compress far better than growing step numbers.
        numbers.append(shuffle(np.concatenate([steps[:1], differences])))
    for name, column in columns.items():
        count = n
        if column.present is not None:
            count = int(column.present.sum())
            numbers.append(np.packbits(column.present))
        if column.values is None:
            described.append(
                (name, column.code, count, column.shape or (), column.codec)
            )
            packs.append(column.packed)
        else:
            described.append((name, column.code, count))
            numbers.append(shuffle(column.values))
    if numbers:
        packs[0] = compress(np.concatenate([part.reshape(-1) for part in numbers]))
    body = b"".join(packs)
    full: dict[str, Any] = {"kind": "records", **head, "n": n}
    if not full.get("stream"):
        full.pop("stream", None)
    if full.get("before") == full["first"]:
        del full["before"]
    if is_regular:
        full["steps"] = [first, stride]
    full["columns"] = described
    full["packs"] = [len(pack) for pack in packs]
    # The body has a checksum of its own, so that a damaged body does not hide its head,
    # which counts the records that are lost.
    crc = zlib.crc32(body, salt)
    return MARK + encode_frame(full, salt=salt) + _CRC.pack(crc) + body


def decode_block(data: bytes, at: int, *, salt: int = 0) -> Block:
    """Decode the block that starts at offset `at`."""
    if not data.startswith(MARK, at):
        raise CorruptFileError("no block starts there.")
    head, end = decode_frame(data, at + len(MARK), max_bytes=_MAX_HEAD_BYTES, salt=salt)
    _check_head(head)
    if head["kind"] != "records":
        return Block(head, end, np.empty(0, np.int64), {})
    # The checksum of the head was right, so only a forger can fail these checks.
    columns = _parse_columns(head)
    length = sum(head["packs"])
    crc, end = data[end : end + _CRC.size], end + _CRC.size
    body = memoryview(data)[end : end + length]
    if len(body) < length or crc != _CRC.pack(zlib.crc32(body, salt)):
        raise CorruptFileError("it is cut off or damaged.")
    steps, values = _decode_body(head, columns, body)
    return Block(head, end + length, steps, values)


# Name, dtype and count of a column; for arrays also an unpacker without a body.
_ColumnSpec = tuple[str, str, int, PackedArray | None]


def _decode_body(
    head: dict[str, Any], columns: list[_ColumnSpec], body: memoryview
) -> tuple[np.ndarray, dict[str, Column]]:
    n, mask_bytes = head["n"], -(-head["n"] // 8)
    regular = head.get("steps")
    length = 0
    if regular is None:
        length = 8 * n
    for _, code, count, packed in columns:
        if count < n:
            length += mask_bytes
        if packed is None:
            length += DTYPES[code].itemsize * count
    packs = iter(head["packs"])
    at = next(packs)
    raw = b""
    if length or at:
        raw = decompress(body[:at], length)
    start = 0
    if regular is not None:
        steps = _expand_regular_steps(regular, n)
    else:
        differences = unshuffle(raw[: 8 * n], DTYPES["i8"])
        with np.errstate(over="ignore"):
            steps = np.cumsum(differences)
        if (steps[1:] <= steps[:-1]).any():
            raise CorruptFileError("its steps are out of order.")
        start = 8 * n
    values: dict[str, Column] = {}
    for name, code, count, packed in columns:
        present = np.ones(n, bool)
        if count < n:
            bits = np.frombuffer(raw, np.uint8, mask_bytes, start)
            present = np.unpackbits(bits, count=n).astype(bool)
            start += mask_bytes
        # A wrong mask would shift the values of all later columns.
        if present.sum() != count:
            raise CorruptFileError("it has a wrong mask.")
        if packed is not None:
            stop = at + next(packs)
            stored = dataclasses.replace(packed, body=body[at:stop])
            at = stop
        else:
            stop = start + count * DTYPES[code].itemsize
            stored = unshuffle(raw[start:stop], DTYPES[code])
            start = stop
        values[name] = Column(present, stored)
    return steps, values


def _expand_regular_steps(regular: object, n: int) -> np.ndarray:
    match regular:
        case [int(first), int(stride)] if (
            _is_step(first) and stride > 0 and _is_step(first + (n - 1) * stride)
        ):
            return np.array([first + i * stride for i in range(n)], np.int64)
    raise CorruptFileError("its steps are out of order.")


# Checksums find damage. The checks below are for forged files, whose checksums match:
# whatever such a file claims, reading it allocates no more than the limits.
def _check_head(head: dict[str, Any]) -> None:
    kind = head.get("kind")
    if kind not in ("records", "rewind", "dropped", "closed"):
        raise CorruptFileError(f"its kind {kind!r:.99} is unknown.")
    head.setdefault("before", head.get("first"))
    counts = {"records": ("n", "before"), "dropped": ("bytes",)}
    for key in ("first", *counts.get(kind, ())):
        if not _is_count(head.get(key)):
            raise CorruptFileError(f"it has a wrong {key!r}.")
    if kind == "rewind":
        others = head.get("others", {})
        if not _is_step(head.get("step")) or type(others) is not dict:
            raise CorruptFileError("it has a wrong 'step'.")
        if not all(_is_step(step) for step in others.values()):
            raise CorruptFileError("it has a wrong 'step' of a stream.")
    elif kind == "closed":
        totals = head.get("streams", {})
        if type(totals) is not dict or not all(map(_is_count, totals.values())):
            raise CorruptFileError("it has a wrong count of records.")


def _parse_columns(head: dict[str, Any]) -> list[_ColumnSpec]:
    n, columns, packs = head["n"], head.get("columns"), head.get("packs")
    stream = head.get("stream", "")
    if not 1 <= n <= RECORDS_PER_BLOCK or type(columns) is not list:
        raise CorruptFileError("it has a wrong shape.")
    if type(stream) is not str or len(columns) > MAX_COLUMNS:
        raise CorruptFileError("it has a wrong stream, or too many columns.")
    if type(packs) is not list or not all(map(_is_count, packs)):
        raise CorruptFileError("it has wrong lengths.")
    parsed: list[_ColumnSpec] = []
    size = 0
    for column in columns:
        match column:
            case [str(name), str(code), int(count)] if 1 <= count <= n:
                if code not in _NUMBER_CODES:
                    raise CorruptFileError("it has a column of no numbers.")
                parsed.append((name, code, count, None))
            case [str(name), str(code), int(count), list(shape), "plain" | "xor"] if (
                1 <= count <= n and code in DTYPES and _is_shape(shape)
            ):
                size += count * math.prod(shape) * DTYPES[code].itemsize
                packed = PackedArray(b"", code, (count, *shape), column[4])
                parsed.append((name, code, count, packed))
            case _:
                raise CorruptFileError("it has a wrong column.")
    if len({name for name, *_ in parsed}) < len(parsed):
        raise CorruptFileError("it names a column twice.")
    if size > (MAX_RECORD_BYTES if n == 1 else MAX_BLOCK_BYTES):
        raise CorruptFileError(f"it claims {size:,} bytes of arrays.")
    if len(packs) != 1 + sum(packed is not None for *_, packed in parsed):
        raise CorruptFileError("it has a wrong number of lengths.")
    return parsed


# `type(...) is int`, since isinstance would let True and False pass.
def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_step(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_shape(shape: list[Any]) -> bool:
    # The number of axes first: a product of millions of sides would take forever.
    return len(shape) <= MAX_AXES and all(map(_is_count, shape)) and fits_array(shape)
