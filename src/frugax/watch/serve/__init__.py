"""Serve the live page of a run from a process that only reads the run's journal.

Start at `serve`, which is the command `frugax watch serve RUN_DIR`. Nothing here
touches the run. Needs `pip install "frugax[serve]"`. Guide: docs/watch_pictures.md.
"""

from ._app import page_app
from ._feed import Feed
from ._guard import is_loopback, own_host_names
from ._history import Cursor, History
from ._run_folder import is_lock_held
from ._run_monitor import RunMonitor
from ._server import DEFAULT_PORT, serve
from ._stores import FrameStore

__all__ = [
    "DEFAULT_PORT",
    "Cursor",
    "Feed",
    "FrameStore",
    "History",
    "RunMonitor",
    "is_lock_held",
    "is_loopback",
    "own_host_names",
    "page_app",
    "serve",
]
