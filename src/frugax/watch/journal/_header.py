"""The first bytes of a file: what it is, in which format, and what its owner said."""

from typing import Any

from frugax.errors import CorruptFileError, UnsupportedFileError

from ._frames import decode_frame, encode_frame

MAGIC = b"FXWATCH\n"
FORMAT = 1
LONGEST_META = 16 * 2**20


def encode_header(meta: dict[str, Any], *, salt: int = 0) -> bytes:
    """The first bytes of a journal.

    Raises:
        TypeError: `meta` holds what JSON cannot.
        ValueError: `meta` is too long.
    """
    framed = encode_frame({"format": FORMAT, "salt": salt, "meta": meta})
    # What is long packed is also long unpacked; repetitions are found out here.
    if len(framed) > LONGEST_META or _too_long(framed):
        raise ValueError(f"meta is too long: as JSON at most {LONGEST_META:,} bytes.")
    return MAGIC + framed


def _too_long(framed: bytes) -> bool:
    try:
        decode_frame(framed, 0, longest=LONGEST_META)
    except CorruptFileError:
        return True
    return False


def decode_header(
    data: bytes, *, magic: bytes = MAGIC, what: str = "journal"
) -> tuple[dict[str, Any], int]:
    """The header of a file and where its first block starts.

    Raises:
        CorruptFileError: this is no such file, or its header is damaged.
        UnsupportedFileError: a newer version wrote it.
    """
    if not data.startswith(magic):
        raise CorruptFileError(f"this is no {what}: it starts with {data[:8]!r}.")
    header, end = decode_frame(data, len(magic), longest=LONGEST_META)
    version = header.get("format")
    if type(version) is int and version != FORMAT:
        raise UnsupportedFileError(
            f"this is a {what} of format {version}; this version reads format "
            f"{FORMAT}. Install a newer frugax."
        )
    salt = header.get("salt", 0)
    if (
        type(version) is not int
        or type(salt) is not int
        or not 0 <= salt < 2**32
        or type(header.get("meta")) is not dict
    ):
        raise CorruptFileError(f"the {what}'s header lacks its format or its meta.")
    return header | {"salt": salt}, end
