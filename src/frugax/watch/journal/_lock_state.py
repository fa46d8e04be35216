"""Tell whether a process has a file locked, without taking its lock."""

import os
from pathlib import Path


def is_held(path: str | os.PathLike[str]) -> bool | None:
    """Whether a process of this machine holds the lock of a file; None if not known.

    A writer holds the lock of its journal, and `frugax run` that of its folder.
    """
    # Read from the kernel's list. Trying to lock the file would, for a moment, keep the
    # run itself out.
    try:
        status = os.stat(path)
    except OSError:
        return False
    try:
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    entry = f"{major:02x}:{minor:02x}:{status.st_ino}"
    return any(entry in line.split() for line in locks.splitlines())
