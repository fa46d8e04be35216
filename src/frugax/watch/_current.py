"""Which watcher is meant where none is named, and finishing all of them at the end.

Not a context variable: programs call back from threads that have no context.
"""

import atexit
import sys
import threading
import weakref
from typing import Any

from ._asleep import wake_all

_lock = threading.Lock()
_entered: list[Any] = []
_open: "weakref.WeakSet[Any]" = weakref.WeakSet()
_registered = False


def current() -> Any:
    """The watcher that was entered last (`with Watcher(...)`), or None."""
    return _entered[-1] if _entered else None


def enter(watcher: Any) -> None:
    """From now on it is the current one."""
    with _lock:
        _entered.append(watcher)
    wake_all()


def leave(watcher: Any) -> None:
    """It is not the current one any more."""
    with _lock:
        for place in reversed(range(len(_entered))):
            if _entered[place] is watcher:
                del _entered[place]
                break
    wake_all()


def at_exit(watcher: Any) -> None:
    """Close it when the process ends, if it is still there."""
    global _registered
    with _lock:
        _open.add(watcher)
        if not _registered:
            _registered = True
            atexit.register(_close_all)


def _close_all() -> None:
    for watcher in list(_open):
        try:
            watcher.close(timeout_s=2.0)
        except BaseException as e:  # the others are to be closed too
            sys.stderr.write(f"frugax.watch: {type(e).__name__}: {e}\n")
