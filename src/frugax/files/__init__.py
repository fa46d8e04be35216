"""Files that are there whole or not at all.

Start at `write_whole`; `replacing` streams.
"""

from ._atomic import make_folder, output_error, replacing, write_whole

__all__ = ["make_folder", "output_error", "replacing", "write_whole"]
