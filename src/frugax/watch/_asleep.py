"""Watched functions that are not watched now, and waking them when something changes.

While nothing is due, and will not be until a level or a watcher changes, a call of
`watch.jit` asks nobody. Whoever changes one of these says so here.
"""

import threading
import weakref
from collections.abc import Callable

_lock = threading.Lock()
_asleep: "weakref.WeakSet[Callable[[], None]]" = weakref.WeakSet()
_changes = 0


def changes() -> int:
    """How often something has changed."""
    return _changes


def sleep(wake: Callable[[], None], *, since: int) -> bool:
    """Have a function woken at the next change.

    Args:
        wake: what wakes it; not kept alive.
        since: what `changes` said before it was found that nothing is due.

    Returns:
        Whether nothing has changed since; if it has, nobody will be woken.
    """
    with _lock:
        if since != _changes:
            return False
        _asleep.add(wake)
        return True


def wake_all() -> None:
    """Something has changed: every function asks again at its next call."""
    global _changes
    with _lock:
        _changes += 1
        woken = list(_asleep)
        _asleep.clear()
    for wake in woken:
        wake()
