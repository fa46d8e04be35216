"""Wake functions that run unwatched when a level or a watcher changes.

While nothing is due, and nothing will be until a change, a function of `watch.jit` runs
its bare program without asking its watcher. Every change is announced here.
"""

import threading
import weakref
from collections.abc import Callable

_lock = threading.Lock()
# Weak, so that the registry does not keep functions alive that nobody calls any more.
_idle: "weakref.WeakSet[Callable[[], None]]" = weakref.WeakSet()
_changes = 0


def change_count() -> int:
    """Return the number of changes so far."""
    return _changes


def register_idle(wake: Callable[[], None], *, since: int) -> bool:
    """Have a function woken at the next change, unless one has happened meanwhile.

    Args:
        wake: called at the next change; not kept alive.
        since: `change_count()` from before the function found that nothing is due. A
            change that came in between would otherwise go unnoticed.

    Returns:
        Whether the function is registered.
    """
    with _lock:
        if since != _changes:
            return False
        _idle.add(wake)
        return True


def wake_all() -> None:
    """Announce a change: every registered function asks again at its next call."""
    global _changes
    with _lock:
        _changes += 1
        woken = list(_idle)
        _idle.clear()
    # Outside of the lock: a woken function may register itself again at once.
    for wake in woken:
        wake()
