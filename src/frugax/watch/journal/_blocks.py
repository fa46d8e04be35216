"""The bytes of a journal: a header, then blocks that each stand on their own.

    file    magic, frame(header)    header = {"format": 1, "salt": s, "meta": {...}}
            block, block, ...
    block   mark, frame(head), crc32 (u32) of the body, body
            mark, frame(head)               for kinds that have no body

A block's head is one of
    {"kind": "records", "stream": name, "first": k, "before": j, "n": n,
     "steps": [s, d], "columns": [column, ...], "packs": [length, ...]}
        k records were written before these n, j of them to the same stream
    {"kind": "rewind", "first": k, "step": s, "others": {stream: s}}
        records after step s are void, in each stream after its own s
    {"kind": "dropped", "first": k, "bytes": b}  b damaged bytes were cut off here
    {"kind": "closed", "first": k, "streams": {stream: n}}
        the writer left in good order, after n records of each stream
"stream" is left out for the training steps, and "before" where it equals k.

A column is [name, dtype, count] if it holds numbers, and otherwise
[name, dtype, count, shape, codec]. The body is the zstd frames whose lengths "packs"
tells (0: none). The first holds all numbers: the steps, as differences, unless "steps"
says that they are s, s + d, ...; then column by column the bit mask of the records that
have it, if `count` is below n, and, for numbers, the values. Then each column of arrays
has a frame of its own, so that one can be read without the others.

Only data is read back. Every length is checked against what is there, and every size
against its cap, before anything of that size is allocated.
"""

import dataclasses
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError

from ._columns import Column
from ._dtypes import DTYPES
from ._frames import decode_frame, encode_frame
from ._heads import check_head, checked_columns, is_step
from ._packing import Codec, Packed, compress, decompress, shuffle, unshuffle
from ._values import LONGEST_NAME, MOST_AXES, MOST_COLUMNS

MARK = b"\xf5BLK"
# What the caps above can make at most, rounded up.
_LONGEST_HEAD = 4 * MOST_COLUMNS * (LONGEST_NAME + 30) + 16 * MOST_COLUMNS * MOST_AXES
_STEPS = DTYPES["i8"]
_CRC = struct.Struct("<I")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """One decoded block.

    Attributes:
        head: its JSON, checked.
        end: offset of the first byte behind it, in what it was decoded from.
        steps: for kind "records", `(n,)` int64; else empty.
        columns: for kind "records", by name; else empty.
    """

    head: dict[str, Any]
    end: int
    steps: np.ndarray
    columns: dict[str, Column]

    @property
    def kind(self) -> str:
        """What it is: "records", "rewind", "dropped" or "closed"."""
        return self.head["kind"]

    @property
    def stream(self) -> str:
        """The stream of its records."""
        return self.head.get("stream", "")


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """A column on its way into a block.

    Attributes:
        code: the dtype's name in the file.
        present: which records have it, `(n,)`; None if all have.
        values: `(count, ...)`; of arrays, None.
        shape: of one array; None for numbers.
        codec: how the arrays are packed.
        packed: the arrays, packed.
    """

    code: str
    present: np.ndarray | None
    values: np.ndarray | None = None
    shape: tuple[int, ...] | None = None
    codec: Codec = "plain"
    packed: bytes = b""


def encode_mark(head: dict[str, Any], *, salt: int = 0) -> bytes:
    """A block without a body: every kind but "records"."""
    return MARK + encode_frame(head, salt=salt)


def encode_records(
    head: dict[str, Any],
    steps: np.ndarray,
    columns: dict[str, Written],
    *,
    salt: int = 0,
) -> bytes:
    """A block of kind "records".

    Args:
        head: its "stream", "first" and "before".
        steps: `(n,)` int64, rising.
        columns: by name, each of some record.
        salt: what the checksums of this file start from.
    """
    n = len(steps)
    numbers: list[np.ndarray] = []
    first, last = int(steps[0]), int(steps[-1])
    stride = int(steps[1]) - first if n > 1 else 1
    even = last == first + (n - 1) * stride and steps.tolist() == [
        *range(first, last + 1, stride)
    ]
    described: list[Sequence[object]] = []
    packs = [b""]
    if not even:
        with np.errstate(over="ignore"):  # wraps here, and back when it is summed up
            strides = np.diff(steps)
        numbers.append(shuffle(np.concatenate([steps[:1], strides])))
    for name, column in columns.items():
        count = n if column.present is None else int(column.present.sum())
        if column.present is not None:
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
    head = {
        "kind": "records",
        **{k: v for k, v in head.items() if k != "before" or v != head["first"]},
        "n": n,
        **({"steps": [first, stride]} if even else {}),
        "columns": described,
        "packs": [len(pack) for pack in packs],
    }
    if not head.get("stream"):
        head.pop("stream", None)
    crc = zlib.crc32(body, salt)
    return MARK + encode_frame(head, salt=salt) + _CRC.pack(crc) + body


def decode_block(data: bytes, at: int, *, salt: int = 0) -> Block:
    """The block that starts at offset `at`.

    Raises:
        CorruptFileError: there is no sound block.
    """
    if not data.startswith(MARK, at):
        raise CorruptFileError("no block starts there.")
    head, end = decode_frame(data, at + len(MARK), longest=_LONGEST_HEAD, salt=salt)
    check_head(head)
    if head["kind"] != "records":
        return Block(head, end, np.empty(0, np.int64), {})
    columns = checked_columns(head)
    length = sum(head["packs"])
    crc, end = data[end : end + _CRC.size], end + _CRC.size
    body = memoryview(data)[end : end + length]
    if len(body) < length or crc != _CRC.pack(zlib.crc32(body, salt)):
        raise CorruptFileError("it is cut off or damaged.")
    steps, values = _decode_body(head, columns, body)
    return Block(head, end + length, steps, values)


def _decode_body(
    head: dict[str, Any],
    columns: list[tuple[str, str, int, Packed | None]],
    body: memoryview,
) -> tuple[np.ndarray, dict[str, Column]]:
    n, masks = head["n"], -(-head["n"] // 8)
    even = head.get("steps")
    length = sum(
        (masks if count < n else 0)
        + (DTYPES[code].itemsize * count if lazy is None else 0)
        for _, code, count, lazy in columns
    ) + (0 if even is not None else 8 * n)
    packs = iter(head["packs"])
    at = next(packs)
    raw = decompress(body[:at], length) if length or at else b""
    start = 0
    if even is not None:
        steps = _even_steps(even, n)
    else:
        strides = unshuffle(raw[: 8 * n], _STEPS)
        with np.errstate(over="ignore"):
            steps = np.cumsum(strides)
        if (steps[1:] <= steps[:-1]).any():
            raise CorruptFileError("its steps are out of order.")
        start = 8 * n
    values: dict[str, Column] = {}
    for name, code, count, lazy in columns:
        present = np.ones(n, bool)
        if count < n:
            bits = np.frombuffer(raw, np.uint8, masks, start)
            present = np.unpackbits(bits, count=n).astype(bool)
            start += masks
        if present.sum() != count:
            raise CorruptFileError("it has a wrong mask.")
        if lazy is not None:
            stop = at + next(packs)
            held = dataclasses.replace(lazy, body=body[at:stop])
            at = stop
        else:
            stop = start + count * DTYPES[code].itemsize
            held = unshuffle(raw[start:stop], DTYPES[code])
            start = stop
        values[name] = Column(present, held)
    return steps, values


def _even_steps(even: object, n: int) -> np.ndarray:
    match even:
        case [int(first), int(stride)] if (
            is_step(first) and stride > 0 and is_step(first + (n - 1) * stride)
        ):
            return np.array([first + i * stride for i in range(n)], np.int64)
    raise CorruptFileError("its steps are out of order.")
