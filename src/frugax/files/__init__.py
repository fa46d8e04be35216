"""Files that are there whole or not at all.

Start at `write_whole`; `replacing` streams; `check_own` spares files of another kind;
`cache_folder` says where caches live.
"""

from ._atomic import check_own, make_folder, replacing, why_not_written, write_whole
from ._cache_folder import cache_folder
from ._lock import lock, unlock

__all__ = [
    "cache_folder",
    "check_own",
    "lock",
    "make_folder",
    "replacing",
    "unlock",
    "why_not_written",
    "write_whole",
]
