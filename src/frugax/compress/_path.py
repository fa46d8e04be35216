"""What names a file."""

import os


def check_path(path: object) -> None:
    """Meet what names no file before the work, not in the middle of it.

    Raises:
        TypeError: it is neither text nor a path.
    """
    if isinstance(path, str | os.PathLike):
        return
    instead = (
        ": the bytes of a file are read by frugax.compress.decompress(data)"
        if isinstance(path, bytes | bytearray | memoryview)
        else ""
    )
    raise TypeError(
        f"a file is named by text or a path, got a {type(path).__name__}{instead}."
    )
