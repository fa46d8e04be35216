"""Files that are there whole or not at all.

Start at `write_whole`; `replacing` streams.
"""

from ._atomic import make_folder, replacing, why_not_written, write_whole

__all__ = ["make_folder", "replacing", "why_not_written", "write_whole"]
