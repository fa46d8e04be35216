"""Run Python's garbage collector less often for a while.

Its thresholds belong to the whole process, so nothing in frugax changes them outside
of a `GarbageCollectionOptimizer` block.
"""

import gc
import threading
from types import TracebackType

# The guide's thresholds; Python's own depend on its version, hence `_before`.
_FEWER_PASSES = (1000, 15, 15)

# The thresholds belong to the process, so these do too.
_lock = threading.Lock()
_blocks = 0
_before = _while_open = gc.get_threshold()


class GarbageCollectionOptimizer:
    """Lets the garbage collector run less often inside a `with` block.

    The thresholds are 1000, 15, 15. The last block to end sets them back, in whatever
    order blocks of several threads end. Thresholds that somebody else has set meanwhile
    are left alone.
    """

    def __enter__(self) -> "GarbageCollectionOptimizer":
        global _before, _blocks, _while_open
        with _lock:
            if _blocks == 0:
                _before = gc.get_threshold()
                gc.set_threshold(*_FEWER_PASSES)
                # Read back: some versions of Python ignore the last threshold.
                _while_open = gc.get_threshold()
            _blocks += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _blocks
        with _lock:
            _blocks -= 1
            if _blocks == 0 and gc.get_threshold() == _while_open:
                gc.set_threshold(*_before)
