"""The live page of a run: a process of its own that reads the run's journal.

Start at `serve`, which is `frugax watch serve RUN_DIR`. Nothing here touches the run.
Needs `pip install "frugax[serve]"`. Guide: docs/watch.md.
"""

from ._app import page_app
from ._feed import Feed
from ._server import DEFAULT_PORT, serve
from ._thin import thin
from ._watched import Watched

__all__ = ["DEFAULT_PORT", "Feed", "Watched", "page_app", "serve", "thin"]
