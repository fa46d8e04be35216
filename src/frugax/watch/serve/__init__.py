"""Serve the live page of one run or many from a process that only reads journals.

Start at `serve`, which is the command `frugax watch serve FOLDER`. Nothing here
touches a run. Needs `pip install "frugax[serve]"`. Guide: docs/watch_pictures.md.
"""

from ._app import page_app, runs_app
from ._curve_summary import MAX_BUCKETS, CurveSummary, to_points
from ._feed import Feed
from ._guard import is_loopback, own_host_names
from ._history import Cursor, History
from ._run_folder import is_lock_held
from ._run_monitor import RunMonitor
from ._runs_monitor import RunsMonitor
from ._server import DEFAULT_PORT, open_monitor, serve
from ._stores import FrameStore

__all__ = [
    "DEFAULT_PORT",
    "MAX_BUCKETS",
    "Cursor",
    "CurveSummary",
    "Feed",
    "FrameStore",
    "History",
    "RunMonitor",
    "RunsMonitor",
    "is_lock_held",
    "is_loopback",
    "open_monitor",
    "own_host_names",
    "page_app",
    "runs_app",
    "serve",
    "to_points",
]
