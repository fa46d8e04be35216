"""The file format of stored data.

    file    magic, frame(header)        header = {"format": 1, "meta": {"level": l,
                                                  "tree_bytes": t}}
            part, part, ..., frame({"end": true})
    part    frame({"raw": n, "packed": m}), m bytes, their crc32

The parts of the tree come first: the data as JSON (`_plain_tree.py`). Then, dtype by
dtype in order of appearance, all arrays of that dtype follow end to end, cut into parts
of 4 MiB and byte-shuffled, so that equal arrays lie side by side whatever they are
nested in. Each checksum continues the one before, so that a part of another file, or
from another place, is found.
"""

import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError
from frugax.watch.journal.framing import (
    FORMAT,
    decode_frame,
    decode_header,
    encode_frame,
)
from frugax.watch.journal.packing import (
    DTYPES,
    code_of,
    compress,
    decompress,
    shuffle,
    unshuffle,
)

from ._plain_tree import from_tree, shapes

# The newline shows damage by transfers that convert line ends.
MAGIC = b"FXSTORE\n"
# A multiple of 16, the largest itemsize, so that no number is cut. Reading needs one
# part unpacked at a time.
PART_BYTES = 4 * 2**20
# Python takes some twenty bytes in memory for each of these.
MOST_TREE_BYTES = 64 * 2**20
# A head holds two integers; a longer one is forged.
_LONGEST_HEAD = 1000
_CRC = struct.Struct("<I")


def encode(text: bytes, arrays: list[np.ndarray], *, level: int) -> Iterator[bytes]:
    """A file's bytes, piece by piece.

    Args:
        text: the tree, as JSON.
        arrays: those that `to_tree` gave with it.
        level: of zstd; 0 for none.
    """
    meta = {"level": level, "tree_bytes": len(text)}
    header = MAGIC + encode_frame({"format": FORMAT, "meta": meta})
    yield header
    crc = zlib.crc32(header)
    for raw in _parts(text, arrays):
        packed = compress(raw, level=level)
        head = encode_frame({"raw": raw.nbytes, "packed": len(packed)}, salt=crc)
        crc = zlib.crc32(packed, zlib.crc32(head, crc))
        yield head + packed + _CRC.pack(crc)
    yield encode_frame({"end": True}, salt=crc)


class TooLargeError(Exception):
    """Carries how many bytes it would take."""


def _parts(text: bytes, arrays: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the unpacked parts of a file."""
    yield from _cut([np.frombuffer(text, np.uint8)])
    for code in dict.fromkeys(map(_code, arrays)):
        itemsize = DTYPES[code].itemsize
        # Views of the arrays' bytes: only `_cut` copies, one part at a time.
        alike = (a.reshape(-1).view(np.uint8) for a in arrays if _code(a) == code)
        for raw in _cut(alike):
            yield shuffle(raw.view(DTYPES[code]) if itemsize > 1 else raw)


def _code(array: np.ndarray) -> str:
    code = code_of(array.dtype)
    assert code is not None  # to_tree has refused the others
    return code


def _cut(flat: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Bytes end to end, in pieces of `PART_BYTES`, a multiple of every itemsize."""
    held: list[np.ndarray] = []
    size = 0
    for piece in flat:
        while size + piece.size >= PART_BYTES:
            rest = PART_BYTES - size
            yield np.concatenate([*held, piece[:rest]])
            piece = piece[rest:]
            held, size = [], 0
        held.append(piece)
        size += piece.size
    if size:
        yield np.concatenate(held)


def decode(data: bytes, *, most_bytes: int) -> Any:
    """The data of a file.

    Raises:
        CorruptFileError: the file is damaged or of another kind.
        TooLargeError: unpacked it would be larger than `most_bytes`.
        UnsupportedFileError: a newer version wrote it.
    """
    header, at = decode_header(data, magic=MAGIC, kind="file of stored data")
    level = header["meta"].get("level")
    tree_bytes = header["meta"].get("tree_bytes")
    if type(level) is not int or type(tree_bytes) is not int or tree_bytes < 0:
        raise CorruptFileError("its header lacks the level or the tree's size.")
    # Before anything is unpacked: the header of a forged file may claim any size.
    if tree_bytes > min(most_bytes, MOST_TREE_BYTES):
        raise TooLargeError(tree_bytes)
    reader = _Reader(data, at, level)
    text = b"".join(reader.parts(tree_bytes))
    try:
        tree = json.loads(text)
        wanted = list(shapes(tree))
    except (ValueError, RecursionError) as e:
        raise CorruptFileError(f"its tree is not JSON: {e}") from e
    sizes = [math.prod(shape) * DTYPES[code].itemsize for code, shape in wanted]
    if (size := sum(sizes, tree_bytes)) > most_bytes:
        raise TooLargeError(size)
    # Allocated only now, when their sum is known to be allowed.
    arrays = [np.empty(shape, DTYPES[code]) for code, shape in wanted]
    for code in dict.fromkeys(code for code, _ in wanted):
        alike = [
            array for array, (own, _) in zip(arrays, wanted, strict=True) if own == code
        ]
        _fill(alike, reader, code)
    # Before the data is rebuilt: a file that was cut off must not pass for a shorter
    # one.
    reader.finish()
    return from_tree(tree, iter(arrays))


def _fill(arrays: list[np.ndarray], reader: "_Reader", code: str) -> None:
    targets = (array.reshape(-1).view(np.uint8) for array in arrays)
    target = np.empty(0, np.uint8)
    for part in reader.parts(sum(array.nbytes for array in arrays)):
        if len(part) % DTYPES[code].itemsize:
            raise CorruptFileError("a part ends inside a number.")
        source = unshuffle(part, DTYPES[code]).view(np.uint8)
        while source.size:
            while not target.size:
                target = next(targets)
            n = min(target.size, source.size)
            target[:n] = source[:n]
            target, source = target[n:], source[n:]


class _Reader:
    """Parts of a file, one after the other."""

    def __init__(self, data: bytes, at: int, level: int) -> None:
        self._data = data
        self._at = at
        self._level = level
        self._crc = zlib.crc32(data[:at])

    def parts(self, length: int) -> Iterator[bytes]:
        """Unpacked, as many as make up `length` bytes."""
        while length:
            head, end = self._head()
            raw, size = head.get("raw"), head.get("packed")
            if type(raw) is not int or type(size) is not int or size < 0:
                raise CorruptFileError(f"the part at byte {self._at} has wrong sizes.")
            if not 0 < raw <= min(length, PART_BYTES):
                raise CorruptFileError(f"the part at byte {self._at} is too long.")
            packed = memoryview(self._data)[end : end + size]
            # Checked before it is decompressed, so that zstd never sees damaged data.
            crc = zlib.crc32(packed, zlib.crc32(self._data[self._at : end], self._crc))
            after = end + size + _CRC.size
            if self._data[end + size : after] != _CRC.pack(crc):
                raise CorruptFileError(f"the part at byte {self._at} is damaged.")
            self._at, self._crc = after, crc
            length -= raw
            yield decompress(packed, raw, level=self._level)

    def finish(self) -> None:
        """See that nothing is missing and nothing follows."""
        head, end = self._head()
        if head != {"end": True} or end != len(self._data):
            raise CorruptFileError("its end is not where it should be.")

    def _head(self) -> tuple[dict[str, Any], int]:
        try:
            return decode_frame(
                self._data, self._at, max_bytes=_LONGEST_HEAD, salt=self._crc
            )
        except CorruptFileError as e:
            raise CorruptFileError(f"at byte {self._at}: {e.args[0]}") from e
