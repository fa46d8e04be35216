"""Run Python's garbage collector less often for a while."""

import contextlib
import gc
import threading
from collections.abc import Iterator

# The guide's thresholds; Python's own depend on its version, hence `_before`.
_FEWER_PASSES = (1000, 15, 15)

# The thresholds belong to the whole process, and so do these.
_lock = threading.Lock()
_blocks = 0
_before = gc.get_threshold()


@contextlib.contextmanager
def optimize_garbage_collection() -> Iterator[None]:
    """Let the garbage collector run less often inside a `with` block.

    The thresholds are 1000, 15, 15. The last block to end sets them back, in whatever
    order blocks of several threads end.
    """
    global _before, _blocks
    with _lock:
        if _blocks == 0:
            _before = gc.get_threshold()
            gc.set_threshold(*_FEWER_PASSES)
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                gc.set_threshold(*_before)
