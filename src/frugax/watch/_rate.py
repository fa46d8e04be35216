"""`Rate`: choose what to record by the level, the budget and the cost of collecting."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax

from ._event import Kind

Level: TypeAlias = Literal["off", "minimal", "standard", "verbose", "full"]

# Steps between two frames at least; 0 for neither frames nor numbers. Numbers are kept
# as often as their `Series` says at every level that keeps them.
_STEPS_BETWEEN: dict[Level, int] = {
    "off": 0,
    "minimal": 0,
    "standard": 10,
    "verbose": 5,
    "full": 1,
}
# Between two frames, below "full".
_MIN_FRAME_GAP_S = 1 / 30
_NO_KINDS: frozenset[Kind] = frozenset()
_SUMMARIES: frozenset[Kind] = frozenset({"summary"})
_ALL_KINDS: frozenset[Kind] = frozenset({"summary", "frame", "scalar"})
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


class Rate:
    """Says what a watcher records now; a change compiles nothing.

    Frames, and numbers of short steps, are thinned by a common factor where collecting
    them takes too much: up fast, down slowly.

    Attributes:
        limit: the budget, a share of the running time.
        records_all: whether each call must run a program that records, whatever the
            level is, as for a flight recorder.
        factor: record every `factor`-th of the steps that would be recorded otherwise.
        level: the level.
        every: steps between two frames, at least; 0 for no frames and no numbers.
        series: the calls that are thinned: of each function, and of `Watcher.record`.
        planned: calls between two that record numbers, and between two that record
            frames, 0 for never; None where the level says it.
    """

    def __init__(
        self,
        limit: float,
        level: str = "standard",
        *,
        records_all: bool = False,
        planned: tuple[int, int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start without thinning, for a limit as a share of the running time."""
        self.limit = limit
        self.records_all = records_all
        self.planned = planned
        self.factor = 1
        self.series: list[Any] = []  # of `Series`
        self._next_frame = 0.0
        self._clock = clock
        self._cpu_s = 0.0
        self._since: float | None = None
        self._lock = threading.Lock()
        self.set_level(level)

    @property
    def stride(self) -> int:
        """Calls between two whose numbers are kept now, the most of all series."""
        return max((one.stride for one in tuple(self.series)), default=1)

    def set_level(self, level: str) -> None:
        """Change the level."""
        for one in tuple(self.series):
            one.next_look = 0
        for known, every in _STEPS_BETWEEN.items():
            if level == known:
                self.level: Level = known
                self.every = every
                return
        known_levels = ", ".join(_STEPS_BETWEEN)
        raise ValueError(f"level must be one of {known_levels}, got {level!r}.")

    @property
    def keeps_all(self) -> bool:
        """Whether the level asks for every step."""
        return self.level == "full"

    @property
    def wanted_kinds(self) -> frozenset[Kind]:
        """The classes of records that the level asks for."""
        if not self.every:
            return _NO_KINDS if self.level == "off" else _SUMMARIES
        return _ALL_KINDS

    @property
    def frame_gap_s(self) -> float:
        """Seconds between two frames, at least."""
        return _MIN_FRAME_GAP_S * self.factor

    def due(self, step: int) -> int:
        """Return which records a program should make at this step.

        Returns:
            0 nothing, 1 records without frames, 2 also frames.
        """
        if self.planned is not None:
            # Counted from step 0, so that even a short run has one record of each kind.
            numbers, frames = self.planned
            if frames and not step % frames:
                return 2
            return int(bool(numbers) and not step % numbers)
        if not self.every:
            return int(self.records_all)
        return 1 + (not step % self.every and self.wants_frames())

    def wants_frames(self) -> bool:
        """Return whether the level asks for a frame now; the next one comes later."""
        if not self.every:
            return False
        if self.keeps_all:
            return True
        now = self._clock()
        # Processes of one program must all run the same one at each call, and their
        # clocks differ. Asked late: it starts JAX's backend, and `jax.distributed` must
        # come before.
        if now < self._next_frame or jax.process_count() > 1:
            return False
        self._next_frame = now + self.frame_gap_s
        return True

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
        return changed


def _steps_up(cost: float, limit: float) -> int:
    """The factor, a power of two, that brings a cost down to its limit."""
    if cost >= limit * _LONGEST_LEAP:
        return _LONGEST_LEAP
    return int(2 ** max(math.ceil(math.log2(cost / limit)), 1))
