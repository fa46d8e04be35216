"""The stack of this process's current watchers, and closing all of them at exit.

The current watcher is a process-wide stack and not a context variable, because programs
call back from threads that have no context of their own.
"""

import atexit
import sys
import threading
import weakref
from typing import Any

from frugax.fileio import abandon_in_children
from frugax.jaxprs import keep_clients

# `atexit` runs this late; a sink that hangs must not keep the process alive for long.
_EXIT_TIMEOUT_S = 2.0

_lock = threading.Lock()
_entered: list[Any] = []
# Weak, so that a watcher that is not used any more is freed with its device arrays.
_open: "weakref.WeakSet[Any]" = weakref.WeakSet()
_registered = False
# The number of changes of a level or of the current watcher: a function that decided
# what to run before a change decides again.
changes = [0]


class _WatcherStack:
    """The stack of this module, so that a forked child can drop it."""

    def abandon(self) -> None:
        """Leave the watchers to the parent; every watched function runs bare."""
        global _lock
        _lock = threading.Lock()
        _entered.clear()
        _open.clear()
        announce_change()
        keep_clients()


_stack = _WatcherStack()
abandon_in_children(_stack)


def announce_change() -> None:
    """Have every watched function ask again at its next call."""
    changes[0] += 1


def current() -> Any:
    """Return the watcher that was entered last (`with Watcher(...)`), or None."""
    return _entered[-1] if _entered else None


def enter(watcher: Any) -> None:
    """Make a watcher the current one."""
    with _lock:
        _entered.append(watcher)
    announce_change()


def leave(watcher: Any) -> None:
    """Remove a watcher from the stack, wherever in the stack it is."""
    with _lock:
        for i in reversed(range(len(_entered))):
            if _entered[i] is watcher:
                del _entered[i]
                break
    announce_change()


def close_at_exit(watcher: Any) -> None:
    """Close a watcher when the process exits, if it still exists then."""
    global _registered
    with _lock:
        _open.add(watcher)
        if not _registered:
            _registered = True
            # Registered with the first watcher: importing frugax switches nothing on.
            atexit.register(_close_all)


def _close_all() -> None:
    for watcher in list(_open):
        try:
            watcher.close(timeout_s=_EXIT_TIMEOUT_S)
        # One watcher that fails, whatever it raises, must not leave the others open.
        except BaseException as e:
            sys.stderr.write(f"frugax.watch: {type(e).__name__}: {e}\n")
