"""Serve the live page of one run or many from a process that only reads journals.

Start at `serve`, which is the command `frugax watch serve FOLDER`. Nothing here
touches a run. Needs `pip install "frugax[serve]"`. Guide: docs/watch_pictures.md.
"""

from ._app import page_app
from ._curve_summary import MAX_BUCKETS, CurveSummary, to_points
from ._guard import is_loopback, own_host_names
from ._journal_index import JournalIndex
from ._page_files import page_in_one_file
from ._run_collection import RunCollection
from ._run_store import RunStore
from ._server import DEFAULT_PORT, serve

__all__ = [
    "DEFAULT_PORT",
    "MAX_BUCKETS",
    "CurveSummary",
    "JournalIndex",
    "RunCollection",
    "RunStore",
    "is_loopback",
    "own_host_names",
    "page_app",
    "page_in_one_file",
    "serve",
    "to_points",
]
