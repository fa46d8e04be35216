"""Adapt how often to record to an overhead budget, by costs measured during the run."""

import threading

from ._experiment import MIN_PAIRS, Estimate

# A factor of more would leave a run with next to no record; the receipt then says that
# the limit is broken.
_MAX_FACTOR = 1024
# Of the limit, the share that collecting may use of a processor: the rest is for the
# extra work of the recording program, which only the A/B sees.
_COLLECTING_SHARE = 0.5
_WINDOW_S = 2.0


class Pace:
    """The factor by which records are thinned: multiplicative up, slowly down.

    Attributes:
        factor: record every `factor`-th of the steps that the level asks for.
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
            if elapsed < _WINDOW_S:
                return False
            share = self._cpu_s / elapsed
            self._cpu_s, self._since = 0.0, now
            allowed = _COLLECTING_SHARE * self.limit
            if share > allowed:
                # What comes next was partly made at the old rate: it says little.
                self._since = None
                return self._scale(2.0)
            # A gap of eight between up and down keeps the factor from oscillating.
            if share < allowed / 8 and not self._held:
                return self._scale(0.5)
            return False

    _held = False

    def judged(self, recent: Estimate) -> bool:
        """Consider the A/B since the last change; tells whether the factor changed."""
        with self._lock:
            if recent.pairs < MIN_PAIRS:
                return False
            self._held = recent.middle > self.limit / 4
            if recent.low > self.limit:
                return self._scale(2.0)
            return False

    def _scale(self, by: float) -> bool:
        wanted = int(min(max(self.factor * by, 1), _MAX_FACTOR))
        changed = wanted != self.factor
        self.factor = wanted
        self.changes += changed
        return changed
