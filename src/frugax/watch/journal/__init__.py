"""Records of a run in one file that survives crashes.

Start at `Journal` to write, at `read` or `Follower` to read, at `export` for other
formats. Guide: docs/watch.md.
"""

from ._columns import Column
from ._export import Exported, export
from ._follower import Appended, Change, Follower, Rewound
from ._heads import RECORDS_PER_BLOCK
from ._journal import Journal
from ._records import Records, read
from ._values import as_number, as_step, check_names, check_size, is_real
from ._walk import Lost

__all__ = [
    "RECORDS_PER_BLOCK",
    "Appended",
    "Change",
    "Column",
    "Exported",
    "Follower",
    "Journal",
    "Lost",
    "Records",
    "Rewound",
    "as_number",
    "as_step",
    "check_names",
    "check_size",
    "export",
    "is_real",
    "read",
]
