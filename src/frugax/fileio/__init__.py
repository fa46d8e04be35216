"""Write files atomically: a reader sees the old file or the new one, never half of it.

Start at `write_whole`; `atomic_write` streams, `atomic_folder` writes several files;
`check_ownership` refuses to overwrite a file of another kind; `DiskCache` keeps values
by key, and `cache_folder` says where; `abandon_in_children` keeps forked children from
the files of their parent; `call_before_sigterm` finishes files of a program that ends.
"""

from ._atomic import (
    atomic_folder,
    atomic_write,
    check_ownership,
    make_folder,
    move_into_place,
    write_error_reason,
    write_whole,
)
from ._disk_cache import DiskCache, cache_folder
from ._fork import abandon_in_children
from ._lock import lock, unlock
from ._orbax_messages import mute_orbax
from ._termination import (
    call_before_sigterm,
    forget_before_sigterm,
    is_left_to_default,
)

__all__ = [
    "DiskCache",
    "abandon_in_children",
    "atomic_folder",
    "atomic_write",
    "cache_folder",
    "call_before_sigterm",
    "check_ownership",
    "forget_before_sigterm",
    "is_left_to_default",
    "lock",
    "make_folder",
    "move_into_place",
    "mute_orbax",
    "unlock",
    "write_error_reason",
    "write_whole",
]
