"""Thin frames and short steps by the processor time that collecting them takes."""

import math
import threading

# A factor of more would leave a run with next to no record; the receipt then says that
# the limit is broken.
_MAX_FACTOR = 1024
# Of the limit, the share that collecting may use of a processor: the rest is for the
# calls of the watcher and the extra work of the recording program.
_COLLECTING_SHARE = 0.5
_WINDOW_S = 2.0
_SHORTEST_S = 0.25
# Costs fall more slowly than the rate of records, so a leap may not end at the limit;
# one that is too long loses records for a while.
_LONGEST_LEAP = 16


class Pace:
    """The factor by which frames and short steps are thinned: up fast, down slowly.

    Attributes:
        limit: the budget, a share of the running time.
        factor: record every `factor`-th of the steps that would be recorded otherwise.
        changes: how often it has changed.
    """

    def __init__(self, limit: float) -> None:
        """Start without thinning, for a limit as a share of the running time."""
        self.limit = limit
        self.factor = 1
        self.changes = 0
        self._cpu_s = 0.0
        self._since: float | None = None
        self._lock = threading.Lock()

    def collected(self, cpu_s: float, now: float) -> bool:
        """Add the time of a collection; returns whether the factor changed."""
        with self._lock:
            if self._since is None:
                # The first collection imports and fills caches, and says little.
                self._since = now
                return False
            self._cpu_s += cpu_s
            elapsed = now - self._since
            allowed = _COLLECTING_SHARE * self.limit
            # The budget of a whole window can be spent long before its end.
            is_spent = 0 < allowed * _WINDOW_S < self._cpu_s
            if elapsed < _WINDOW_S and not is_spent:
                return False
            share = self._cpu_s / max(elapsed, _SHORTEST_S)
            self._cpu_s, self._since = 0.0, now
            if share > allowed:
                # The next records were partly made at the old rate: they say little.
                self._since = None
                return self._scale(_steps_up(share, allowed))
            # A gap of eight between up and down keeps the factor from oscillating.
            if share < allowed / 8:
                return self._scale(0.5)
            return False

    def _scale(self, by: float) -> bool:
        wanted = int(min(max(self.factor * by, 1), _MAX_FACTOR))
        changed = wanted != self.factor
        self.factor = wanted
        self.changes += changed
        return changed


def _steps_up(cost: float, limit: float) -> int:
    """The factor, a power of two, that brings a cost down to its limit."""
    if cost >= limit * _LONGEST_LEAP:
        return _LONGEST_LEAP
    return int(2 ** max(math.ceil(math.log2(cost / limit)), 1))
