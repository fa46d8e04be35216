"""The byte layout of an `.fxz` file: read and check its header, footer and checksums.

Reading trusts nothing: every length and offset is checked against the file before
anything is allocated, no class is named and no code runs. Writing is in `_writer.py`.
"""

import dataclasses
import hashlib
import struct
import zlib

import numpy as np

from frugax.errors import CorruptFileError, UnsupportedFileError

from ..arrays import MappedFile
from ..codecs import decompress_frame
from ._header import parse_header
from ._metadata import Chunk, Header

# Not text (high bit), and damaged by line-end conversion: PNG's trick.
MAGIC = b"\x89FXZ\r\n\x1a\n"
VERSION = 2
ALIGN = 64
# zstd can unpack kilobytes to gigabytes: a header that states more is not unpacked.
_MAX_HEADER = 64 << 20
# Magic, u16 version, zeros to the first multiple of `ALIGN`, where the data starts.
_PRELUDE = struct.Struct("<8sH54x")
PRELUDE = _PRELUDE.pack(MAGIC, VERSION)
# u64 header bytes in the file, u64 as JSON, u32 CRC, 4 zero bytes, u64 length of the
# whole file, SHA-256 of all before but the data.
_FOOTER = struct.Struct("<QQI4xQ32x")
_SHA256 = 32


@dataclasses.dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a file whose header was read.

    Attributes:
        file: the whole file.
        header: its header.
        verified: whether all chunks were right, so that they need no more checks.
    """

    file: memoryview
    header: Header
    verified: bool = False

    def check(self) -> None:
        """Check that a mapped file was not cut off meanwhile."""
        if isinstance(self.file.obj, MappedFile):
            self.file.obj.check()

    def read_chunk(self, chunk: Chunk) -> memoryview:
        """Return the bytes of one chunk."""
        self.check()
        start = len(PRELUDE) + chunk.offset
        block = self.file[start : start + chunk.length]
        if not self.verified and zlib.crc32(block) != chunk.crc32:
            raise CorruptFileError("its bytes are damaged: copy the file again.")
        return block


def pack_tail(packed: bytes, plain_bytes: int, before: int) -> bytes:
    """Return header and footer, without the SHA-256 that ends the file."""
    total = before + len(packed) + _FOOTER.size
    crc = zlib.crc32(packed + struct.pack("<Q", plain_bytes))
    footer = _FOOTER.pack(len(packed), plain_bytes, crc, total)
    return packed + footer[:-_SHA256]


def read_header(file: memoryview) -> Header:
    """Read and check everything but the data."""
    start = bytes(file[: len(PRELUDE)])
    if not start.startswith(MAGIC):
        # Too short for the magic, but right so far: a cut-off file rather than a
        # foreign one.
        if MAGIC.startswith(start):
            raise CorruptFileError("the file is cut off: copy it again.")
        raise UnsupportedFileError("not a .fxz file: it starts differently.")
    if len(file) < len(PRELUDE) + _FOOTER.size:
        raise CorruptFileError("the file is cut off: copy it again.")
    version = int.from_bytes(start[8:10], "little")
    if version != VERSION:
        raise UnsupportedFileError(
            f"the file has format version {version}, and this frugax reads "
            f"{VERSION}: update frugax (or the file is damaged)."
        )
    footer = _FOOTER.unpack_from(file, len(file) - _FOOTER.size)
    packed_bytes, plain_bytes, _, total = footer  # the SHA-256 covers the CRC
    # The length stands at the very end, so a cut-off file is noticed without hashing
    # it.
    if total != len(file):
        raise CorruptFileError("the file is cut off or too long: copy it again.")
    data_bytes = total - len(PRELUDE) - packed_bytes - _FOOTER.size
    if data_bytes < 0 or plain_bytes > _MAX_HEADER:
        raise CorruptFileError("the header does not fit in the file.")
    end = len(PRELUDE) + data_bytes
    tail = bytes(file[end:-_SHA256])
    if hashlib.sha256(start + tail).digest() != bytes(file[-_SHA256:]):
        raise CorruptFileError("the header is damaged: copy the file again.")
    packed = tail[:packed_bytes]
    return parse_header(decompress_frame(packed, max_bytes=plain_bytes), data_bytes)


def check_gaps(content: FileContent) -> None:
    """Check that bytes of the data that belong to no chunk are zero."""
    data, at = content.file[len(PRELUDE) :][: content.header.data_bytes], 0
    chunks = [(c.offset, c.length) for r in content.header.tensors for c in r.chunks]
    content.check()
    for offset, length in (*sorted(chunks), (len(data), 0)):
        if at < offset and np.any(data[at:offset]):
            raise CorruptFileError("the file's bytes are damaged: copy it again.")
        at = offset + length


class name_errors:
    """Put a tensor's name or a file's place before any error of a damaged file."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, CorruptFileError | UnsupportedFileError):
            raise type(error)(f"{self._place}: {error.args[0]}") from error
