"""Tell whether a process has a journal open for writing, without taking its lock."""

import os
from pathlib import Path


def is_held(path: str | os.PathLike[str]) -> bool:
    """Whether a process holds the lock of this file; True if that cannot be known."""
    # Read from the kernel's list. Trying to lock the file would, for a moment, keep the
    # run itself out.
    try:
        status = os.stat(path)
        locks = Path("/proc/locks").read_text()
    except OSError:
        return True
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    entry = f"{major:02x}:{minor:02x}:{status.st_ino}"
    return any(entry in line.split() for line in locks.splitlines())
