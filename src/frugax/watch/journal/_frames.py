"""A frame: JSON with its length and its checksum, deflated.

    frame   length (u32), crc32 (u32), deflated JSON

Heads of blocks are short and all alike, so they are deflated with a dictionary, known
beforehand, of what they usually say; it belongs to the format. The checksums of a file
start from its own random number, its salt: a piece of another journal is no block here,
even if a record holds one.
"""

import json
import struct
import zlib
from typing import Any

from frugax.errors import CorruptFileError

_FRAME = struct.Struct("<II")
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# A window of 2 KiB, which takes half as long to set up as one of 32 and, as heads
# repeat what is near, packs them no worse.
_WINDOW, _MEMORY = -11, 4
# What is most frequent stands last: it is the cheapest to point at.
_USUAL = (
    b'["i8",],["u1",],["b1",],["bfloat16",]"loss""grad_norm","accuracy"'
    b'{"kind":"dropped","first":0,"bytes":{"kind":"rewind","first":0,"step":'
    b'"others":{"kind":"closed","first":0,"streams":{"":'
    b'{"kind":"part","of":"u1","first":0,"n":,"body":,"crc":'
    b'[64,28,28],"plain"]],"xor"]],["value","f4",64],["grid","i1",64,[30,30],"plain"]]'
    b'{"kind":"records","stream":"grid","first":64,"before":0,"n":64,"steps":[64,1],'
    b'"columns":[["value","i1",64,[30,30],"plain"]],"packs":[0,'
)


def encode_frame(value: dict[str, Any], *, salt: int = 0) -> bytes:
    """A mapping as a frame.

    Raises:
        TypeError: it holds what JSON cannot.
        ValueError: it holds itself, or a whole number of thousands of digits.
    """
    text = _to_json(value)
    packer = zlib.compressobj(9, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=_USUAL)
    body = packer.compress(text.encode("utf-8", "surrogatepass")) + packer.flush()
    return _FRAME.pack(len(body), zlib.crc32(body, salt)) + body


def decode_frame(
    data: bytes, at: int, *, longest: int, salt: int = 0
) -> tuple[dict[str, Any], int]:
    """The frame at offset `at`, and where it ends.

    Args:
        data: what holds it.
        at: where.
        longest: how long its JSON may be, in bytes.
        salt: what the checksums of this file start from.

    Raises:
        CorruptFileError: there is no sound one.
    """
    start = at + _FRAME.size
    if len(data) < start:
        raise CorruptFileError("the file ends inside a frame.")
    length, crc = _FRAME.unpack_from(data, at)
    # Deflating never makes it much longer.
    body = data[start : start + min(length, longest + 1024)]
    if len(body) < length or zlib.crc32(body, salt) != crc:
        raise CorruptFileError("its frame is cut off or damaged.")
    try:
        unpacker = zlib.decompressobj(-15, zdict=_USUAL)
        text = unpacker.decompress(body, longest + 1)
        if len(text) > longest or not unpacker.eof or unpacker.unused_data:
            raise CorruptFileError("its frame has a wrong length.")
        value = json.loads(text.decode("utf-8", "surrogatepass"))
    # RecursionError: thousands of nested brackets, which no file of ours has.
    except (ValueError, RecursionError, zlib.error) as e:
        raise CorruptFileError(f"its frame is not JSON: {e}") from e
    if type(value) is not dict:
        raise CorruptFileError("its frame holds no mapping.")
    return value, start + length
