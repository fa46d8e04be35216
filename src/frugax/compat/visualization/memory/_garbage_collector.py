"""Run Python's garbage collector less often for a while, and restore its thresholds.

Its thresholds belong to the whole process, so nothing in frugax changes them unless
`GarbageCollectionOptimizer.optimize_for_visualization` is called.
"""

import gc
import threading
import time
import weakref
from collections import deque
from types import TracebackType
from typing import Any

# The guide's thresholds; Python's own depend on its version, hence `_before`.
_FEWER_PASSES = (1000, 15, 15)
_RUNS_KEPT = 100

# The thresholds belong to the process, so these do too: the optimizers in use, and the
# thresholds from before the first. An RLock, since a finalizer may run while it is
# held.
_lock = threading.RLock()
_asking: set[int] = set()
_before: tuple[int, int, int] | None = None


class GarbageCollectionOptimizer:
    """Tunes the garbage collector while asked to, and collects on demand.

    Use it in a `with` block, or call `restore_original_settings`; one that is thrown
    away restores too. Where several are in use the last to leave restores. Thresholds
    that somebody else has set meanwhile are left alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._last_wall: float | None = None
        self._runs = 0
        self._recent: deque[int] = deque(maxlen=_RUNS_KEPT)
        # By id: a reference to the object would keep it from ever being thrown away.
        self._leave = weakref.finalize(self, _stop_asking, id(self))

    def optimize_for_visualization(self) -> None:
        """Let the collector run less often: thresholds 1000, 15, 15."""
        global _before
        with _lock:
            if not _asking:
                _before = gc.get_threshold()
                gc.set_threshold(*_FEWER_PASSES)
            _asking.add(id(self))

    def restore_original_settings(self) -> None:
        """Set the thresholds back, if nobody else needs them any more."""
        _stop_asking(id(self))

    def force_cleanup(self) -> dict[str, int]:
        """Collect all three generations now.

        Returns:
            Objects found unreachable, as `generation_0`, `generation_1`,
            `generation_2`.
        """
        found = {f"generation_{i}": gc.collect(i) for i in range(3)}
        with self._lock:
            # Intervals by the monotonic clock, dates by the wall clock, which may be
            # set back.
            self._last, self._last_wall = time.monotonic(), time.time()
            self._runs += 1
            self._recent.append(sum(found.values()))
        return found

    def should_force_gc(self, interval_seconds: float = 60.0) -> bool:
        """Whether `force_cleanup` was last called longer ago than this.

        Args:
            interval_seconds: counted from the making of this object before the first.
        """
        with self._lock:
            return time.monotonic() - self._last > interval_seconds

    def get_gc_stats(self) -> dict[str, Any]:
        """What `force_cleanup` did, and how the collector is set.

        Returns:
            `total_gc_runs`; `recent_total_collected` and `avg_collected_per_run`, of
            the last 100 runs; `last_gc_time` in seconds since 1970, None before the
            first; `current_counts` and `current_thresholds` of the process.
        """
        with self._lock:
            recent = list(self._recent)
            runs, last = self._runs, self._last_wall
        return {
            "total_gc_runs": runs,
            "recent_total_collected": sum(recent),
            "avg_collected_per_run": sum(recent) / len(recent) if recent else 0.0,
            "last_gc_time": last,
            "current_counts": gc.get_count(),
            "current_thresholds": gc.get_threshold(),
        }

    def __enter__(self) -> "GarbageCollectionOptimizer":
        self.optimize_for_visualization()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore_original_settings()


def _stop_asking(who: int) -> None:
    global _before
    with _lock:
        if who not in _asking:
            return
        _asking.discard(who)
        if _asking or _before is None:
            return
        if gc.get_threshold() == _FEWER_PASSES:  # else somebody else set them since
            gc.set_threshold(*_before)
        _before = None
