"""The folder on disk in which frugax keeps its caches."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the folder of one of frugax's caches; it need not exist yet.

    The folder is `$XDG_CACHE_HOME/frugax/NAME`, or `~/.cache/frugax/NAME` where that
    variable is not set.

    Args:
        name: the name of the cache.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "frugax" / name
