"""The bytes of a journal: a header, then blocks that each stand on their own.

    file    magic, frame(header)            header = {"format": 1, "meta": {...}}
            block, block, ...
    block   mark, frame(head), body         head says what the body holds
    frame   length (u32), crc32 (u32), JSON

A block's head is one of
    {"kind": "records", "first": k, "n": n, "columns": [[name, dtype, count], ...],
     "body": length, "crc": crc32}          k records were written before these n
    {"kind": "rewind", "first": k, "step": s}    records after step s are void
    {"kind": "dropped", "first": k, "bytes": b}  b damaged bytes were cut off here
    {"kind": "closed", "first": k}               the writer left in good order
A body is one zstd frame: the steps, then each column; a column with a `count` below n
starts with the bit mask of the records that have it. Numbers are little-endian and
byte-shuffled: all first bytes, then all second bytes, and so on, which packs better.

Only data is read back. Every length is checked against what is there, and every size
against its cap, before anything of that size is allocated.
"""

import dataclasses
import json
import struct
import zlib
from typing import Any

import numpy as np
import zstandard

from frugax.errors import CorruptFileError

MAGIC = b"FXWATCH\n"
MARK = b"\xf5BLK"  # 0xf5 is in no UTF-8 text, so no JSON here can hold a mark
FORMAT = 1
RECORDS_PER_BLOCK = 64
MOST_COLUMNS = 1000
LONGEST_NAME = 100
# What the caps above can make at most, rounded up.
_LONGEST_HEAD = 4 * MOST_COLUMNS * (LONGEST_NAME + 30)
LONGEST_META = 16 * 2**20
_DTYPES = {"i8": np.dtype("<i8"), "f4": np.dtype("<f4"), "f8": np.dtype("<f8")}
_FRAME = struct.Struct("<II")

Column = tuple[np.ndarray, np.ndarray]  # which records have it (bool), their values


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """One decoded block.

    Attributes:
        head: its JSON, checked.
        end: offset of the first byte behind it.
        steps: for kind "records", `(n,)` int64; else empty.
        columns: for kind "records", by name; else empty.
    """

    head: dict[str, Any]
    end: int
    steps: np.ndarray
    columns: dict[str, Column]


def encode_header(meta: dict[str, Any]) -> bytes:
    """The first bytes of a journal.

    Raises:
        TypeError: `meta` holds what JSON cannot.
        ValueError: `meta` is too long.
    """
    framed = _encode_frame({"format": FORMAT, "meta": meta})
    if len(framed) > LONGEST_META:
        raise ValueError(f"meta takes {len(framed):,} bytes; at most {LONGEST_META:,}.")
    return MAGIC + framed


def decode_header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header of a journal and where its first block starts.

    Raises:
        CorruptFileError: this is no journal, or its header is damaged.
    """
    if not data.startswith(MAGIC):
        raise CorruptFileError(f"this is no journal: it starts with {data[:8]!r}.")
    header, end = _decode_frame(data, len(MAGIC), longest=LONGEST_META)
    if type(header.get("format")) is not int or type(header.get("meta")) is not dict:
        raise CorruptFileError("the journal's header lacks its format or its meta.")
    return header, end


def encode_mark(head: dict[str, Any]) -> bytes:
    """A block without a body: every kind but "records"."""
    return MARK + _encode_frame(head)


def encode_records(
    first: int, steps: list[int], records: list[dict[str, Any]]
) -> bytes:
    """A block of kind "records".

    Args:
        first: how many records were written before these.
        steps: their steps.
        records: their values by name; int64, float32 or float64 once in an array.
    """
    parts = [_shuffle(np.array(steps, "<i8"))]
    described: list[list[Any]] = []
    for name in dict.fromkeys(name for record in records for name in record):
        present = np.array([name in record for record in records])
        column = np.array([record[name] for record in records if name in record])
        kind = "i8" if column.dtype.kind == "i" else f"f{column.dtype.itemsize}"
        described.append([name, kind, len(column)])
        if len(column) < len(steps):
            parts.append(np.packbits(present).tobytes())
        parts.append(_shuffle(column.astype(_DTYPES[kind], copy=False)))
    body = zstandard.ZstdCompressor(level=3).compress(b"".join(parts))
    head = {
        "kind": "records",
        "first": first,
        "n": len(steps),
        "columns": described,
        "body": len(body),
        "crc": zlib.crc32(body),
    }
    return MARK + _encode_frame(head) + body


def decode_block(data: bytes, at: int) -> Block:
    """The block that starts at offset `at`.

    Raises:
        CorruptFileError: there is no sound block.
    """
    if not data.startswith(MARK, at):
        raise CorruptFileError(f"no block starts at byte {at}.")
    head, end = _decode_frame(data, at + len(MARK), longest=_LONGEST_HEAD)
    numbers = {"records": ("n", "body", "crc"), "dropped": ("bytes",)}
    kind = head.get("kind")
    if kind not in ("records", "rewind", "dropped", "closed"):
        raise CorruptFileError(f"the block at byte {at} is of unknown kind {kind!r}.")
    for key in ("first", *numbers.get(kind, ())):
        if type(head.get(key)) is not int or not 0 <= head[key] < 2**63:
            raise CorruptFileError(f"the block at byte {at} has a wrong {key!r}.")
    if kind == "rewind" and not _is_step(head.get("step")):
        raise CorruptFileError(f"the block at byte {at} has a wrong 'step'.")
    if kind != "records":
        return Block(head, end, np.empty(0, np.int64), {})
    columns = _checked_columns(head, at)
    body = data[end : end + head["body"]]
    if len(body) < head["body"] or zlib.crc32(body) != head["crc"]:
        raise CorruptFileError(f"the block at byte {at} is cut off or damaged.")
    steps, values = _decode_body(body, head["n"], columns, at)
    return Block(head, end + head["body"], steps, values)


def _checked_columns(head: dict[str, Any], at: int) -> list[tuple[str, str, int]]:
    n, columns = head["n"], head.get("columns")
    if not 1 <= n <= RECORDS_PER_BLOCK or type(columns) is not list:
        raise CorruptFileError(f"the block at byte {at} has a wrong shape.")
    if len(columns) > MOST_COLUMNS:
        raise CorruptFileError(f"the block at byte {at} has too many columns.")
    for column in columns:
        match column:
            case [str(), "i8" | "f4" | "f8", int(count)] if 1 <= count <= n:
                continue
        raise CorruptFileError(f"the block at byte {at} has a wrong column.")
    if len({name for name, _, _ in columns}) < len(columns):
        raise CorruptFileError(f"the block at byte {at} names a column twice.")
    return [(name, kind, count) for name, kind, count in columns]


def _decode_body(
    body: bytes, n: int, columns: list[tuple[str, str, int]], at: int
) -> tuple[np.ndarray, dict[str, Column]]:
    masks = -(-n // 8)
    length = 8 * n + sum(
        _DTYPES[kind].itemsize * count + (masks if count < n else 0)
        for _, kind, count in columns
    )
    try:
        # The frame's own word for its size is what the decompressor allocates.
        if zstandard.frame_content_size(body) != length:
            raise CorruptFileError(f"the block at byte {at} has a wrong length.")
        raw = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as e:
        raise CorruptFileError(f"the block at byte {at} cannot be unpacked: {e}") from e
    if len(raw) != length:
        raise CorruptFileError(f"the block at byte {at} has a wrong length.")
    steps = _unshuffle(raw[: 8 * n], _DTYPES["i8"])
    if (np.diff(steps) <= 0).any():
        raise CorruptFileError(f"the block at byte {at} has its steps out of order.")
    values: dict[str, Column] = {}
    start = 8 * n
    for name, kind, count in columns:
        present = np.ones(n, bool)
        if count < n:
            bits = np.frombuffer(raw, np.uint8, masks, start)
            present = np.unpackbits(bits, count=n).astype(bool)
            start += masks
        if present.sum() != count:
            raise CorruptFileError(f"the block at byte {at} has a wrong mask.")
        stop = start + count * _DTYPES[kind].itemsize
        values[name] = present, _unshuffle(raw[start:stop], _DTYPES[kind])
        start = stop
    return steps, values


def _encode_frame(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return _FRAME.pack(len(text), zlib.crc32(text)) + text


def _decode_frame(data: bytes, at: int, *, longest: int) -> tuple[dict[str, Any], int]:
    start = at + _FRAME.size
    if len(data) < start:
        raise CorruptFileError(f"the file ends at byte {len(data)}, inside a frame.")
    length, crc = _FRAME.unpack_from(data, at)
    text = data[start : start + min(length, longest)]
    if len(text) < length or zlib.crc32(text) != crc:
        raise CorruptFileError(f"the frame at byte {at} is cut off or damaged.")
    try:
        value = json.loads(text)
    # RecursionError: thousands of nested brackets, which no journal of ours has.
    except (ValueError, RecursionError) as e:
        raise CorruptFileError(f"the frame at byte {at} is not JSON: {e}") from e
    if type(value) is not dict:
        raise CorruptFileError(f"the frame at byte {at} holds no mapping.")
    return value, start + length


def _is_step(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _shuffle(column: np.ndarray) -> bytes:
    width = column.dtype.itemsize
    return column.view(np.uint8).reshape(-1, width).T.tobytes()


def _unshuffle(raw: bytes, dtype: np.dtype) -> np.ndarray:
    planes = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(-1)
