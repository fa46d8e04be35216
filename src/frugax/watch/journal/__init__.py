"""Write the records of a run to one file that survives crashes, and read them back.

Start at `Journal` to write, at `read` or `Follower` to read, and at `export` for other
formats. The modules `framing`, `packing` and `blocks` define the file format. Guide:
docs/watch.md.
"""

from ._changes import Appended, Change, LostRange, Rewound
from ._export import ExportResult, export
from ._follower import Follower
from ._journal import Journal
from ._lock_state import is_held
from ._merge import MergedRow, merge, process_journals
from ._reader import Records, read
from ._text import TEXT_COLUMN, decode_text
from ._validation import (
    MAX_COLUMNS,
    as_number,
    as_step,
    check_name,
    check_names,
    check_size,
    fits_array,
    is_real,
    number_name,
)
from .blocks import RECORDS_PER_BLOCK
from .packing import Column

__all__ = [
    "MAX_COLUMNS",
    "RECORDS_PER_BLOCK",
    "TEXT_COLUMN",
    "Appended",
    "Change",
    "Column",
    "ExportResult",
    "Follower",
    "Journal",
    "LostRange",
    "MergedRow",
    "Records",
    "Rewound",
    "as_number",
    "as_step",
    "check_name",
    "check_names",
    "check_size",
    "decode_text",
    "export",
    "fits_array",
    "is_held",
    "is_real",
    "merge",
    "number_name",
    "process_journals",
    "read",
]
