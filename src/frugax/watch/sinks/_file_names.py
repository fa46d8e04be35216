"""Names of files made from any text."""

import re
import zlib

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(name: str) -> str:
    """The name as a file name: none leaves its folder, no two become the same."""
    safe = _UNSAFE.sub("_", name).strip(".")[:80]
    if safe != name:
        safe += f"-{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"
    return safe
