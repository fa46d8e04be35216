"""Where this user's caches live."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder of one of frugax's caches; it need not be there.

    It is `$XDG_CACHE_HOME/frugax/<name>`, and `~/.cache/frugax/<name>` where that is
    not set.

    Args:
        name: which cache.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "frugax" / name
