"""Encode and decode a journal's frames: JSON, compressed and checksummed; file headers.

    frame   length (u32), crc32 (u32), deflated JSON
    header  magic, frame({"format": 1, "salt": s, "meta": {...}})

Heads of blocks are short and similar, so they are deflated with a preset dictionary of
their usual content; that dictionary is part of the format. The checksums of a
file start from a random number of its own, its salt: a piece of another journal does
not pass for a block of this one, even if a record contains one.
"""

import json
import struct
import zlib
from typing import Any

from frugax.errors import CorruptFileError, UnsupportedFileError

MAGIC = b"FXWATCH\n"
FORMAT = 1
MAX_META_BYTES = 16 * 2**20
_PREFIX = struct.Struct("<II")
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# A window of 2 KiB takes half as long to set up as one of 32 KiB. Heads repeat nearby
# text, so they do not come out larger.
_WINDOW_BITS, _MEMORY_LEVEL = -11, 4
# The most frequent text stands last: deflate encodes short distances in fewer bits.
_DICTIONARY = (
    b'["i8",],["u1",],["b1",],["bfloat16",]"loss""grad_norm","accuracy"'
    b'{"kind":"dropped","first":0,"bytes":{"kind":"rewind","first":0,"step":'
    b'"others":{"kind":"closed","first":0,"streams":{"":'
    b'{"kind":"part","of":"u1","first":0,"n":,"body":,"crc":'
    b'[64,28,28],"plain"]],"xor"]],["value","f4",64],["grid","i1",64,[30,30],"plain"]]'
    b'{"kind":"records","stream":"grid","first":64,"before":0,"n":64,"steps":[64,1],'
    b'"columns":[["value","i1",64,[30,30],"plain"]],"packs":[0,'
)


def encode_frame(value: dict[str, Any], *, salt: int = 0) -> bytes:
    """Encode a mapping as a frame."""
    text = _to_json(value)
    deflater = zlib.compressobj(
        9, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zdict=_DICTIONARY
    )
    body = deflater.compress(text.encode("utf-8", "surrogatepass")) + deflater.flush()
    return _PREFIX.pack(len(body), zlib.crc32(body, salt)) + body


def decode_frame(
    data: bytes, at: int, *, max_bytes: int, salt: int = 0
) -> tuple[dict[str, Any], int]:
    """Decode the frame at offset `at`; return its mapping and the offset of its end."""
    start = at + _PREFIX.size
    if len(data) < start:
        raise CorruptFileError("the file ends inside a frame.")
    length, crc = _PREFIX.unpack_from(data, at)
    # Deflate adds a few bytes at most, so a longer body is refused without a copy.
    body = data[start : start + min(length, max_bytes + 1024)]
    if len(body) < length or zlib.crc32(body, salt) != crc:
        raise CorruptFileError("its frame is cut off or damaged.")
    try:
        # The largest window reads what any smaller one has written.
        inflater = zlib.decompressobj(-15, zdict=_DICTIONARY)
        # The limit stops a small forged frame that would inflate to gigabytes.
        text = inflater.decompress(body, max_bytes + 1)
        if len(text) > max_bytes or not inflater.eof or inflater.unused_data:
            raise CorruptFileError("its frame has a wrong length.")
        value = json.loads(text.decode("utf-8", "surrogatepass"))
    # RecursionError comes from thousands of nested brackets, in forged files only.
    except (ValueError, RecursionError, zlib.error) as e:
        raise CorruptFileError(f"its frame is not JSON: {e}") from e
    if type(value) is not dict:
        raise CorruptFileError("its frame is not a mapping.")
    return value, start + length


def encode_header(meta: dict[str, Any], *, salt: int = 0) -> bytes:
    """Encode the first bytes of a journal."""
    framed = encode_frame({"format": FORMAT, "salt": salt, "meta": meta})
    try:
        # Decoded again, since repetitive text is short only while it is deflated.
        decode_frame(framed, 0, max_bytes=MAX_META_BYTES)
    except CorruptFileError as e:
        raise ValueError(
            f"meta is too long: it may take {MAX_META_BYTES:,} bytes as JSON."
        ) from e
    return MAGIC + framed


def decode_header(data: bytes) -> tuple[dict[str, Any], int]:
    """Decode the header of a file; return it and the offset of the first block."""
    if not data.startswith(MAGIC):
        raise CorruptFileError(f"this is not a journal: it starts with {data[:8]!r}.")
    header, end = decode_frame(data, len(MAGIC), max_bytes=MAX_META_BYTES)
    version = header.get("format")
    if type(version) is int and version != FORMAT:
        raise UnsupportedFileError(
            f"this is a journal of format {version}; this version reads format "
            f"{FORMAT}. Install a newer frugax."
        )
    salt = header.get("salt", 0)
    if (
        type(version) is not int
        or type(salt) is not int
        or not 0 <= salt < 2**32
        or type(header.get("meta")) is not dict
    ):
        raise CorruptFileError("the journal's header lacks its format or its meta.")
    return header | {"salt": salt}, end
