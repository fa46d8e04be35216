"""`OverheadAccount`: the share of a run's time that its watcher has taken so far."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from frugax.budget import format_share

from ._call_schedule import CallSchedule


class OverheadAccount:
    """Sums the time that a watcher takes: its calls, its thread, and its programs.

    Waiting for a processor that other programs hold is not counted: they would have
    held it without a watcher too. Calls count by the processor time of their thread,
    and blocks, which may wait for a disk, by the clock less that wait.

    Attributes:
        call_clock: the clock of calls: that of the run, unless it is the usual one.
        record_s: seconds spent in `Watcher.record`.
        collecting_s: processor seconds of collecting.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Count from the first `touch`, by a clock in seconds."""
        self.record_s = self.collecting_s = 0.0
        self._clock = clock
        is_usual = clock is time.perf_counter
        self.call_clock = time.thread_time if is_usual else clock
        self._held_up_s = _held_up_s if is_usual else lambda: 0.0
        self._started: float | None = None
        self._last_call = 0.0
        self._inside_s = 0.0  # in `count_block`
        self._depth = 0  # nested blocks

    def touch(self, now: float) -> None:
        """Note a call of the watcher."""
        if self._started is None:
            self._started = now
        self._last_call = now

    @contextlib.contextmanager
    def count_block(self) -> Iterator[None]:
        """Count the time of a `with` block as time spent on watching."""
        entered, held_up = self._clock(), self._held_up_s()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:  # the outermost block counts the whole time, once
                self.touch(entered)
                now = self._clock()
                spent = now - entered - (self._held_up_s() - held_up)
                # The end of a run is a part of its time.
                self.touch(now)
                self._inside_s += max(spent, 0.0)

    @contextlib.contextmanager
    def count_collecting(self) -> Iterator[None]:
        """Count the processor time of a `with` block as time of collecting."""
        before = time.thread_time()
        try:
            yield
        finally:
            self.collecting_s += time.thread_time() - before

    def can_afford(self, seconds: float, limit: float) -> bool:
        """Return whether these seconds can be spent now within a share of the time."""
        if self._started is None:
            return False
        inside_s = self._inside_s + self.record_s
        elapsed = self._clock() - self._started - inside_s
        return limit * elapsed >= inside_s + self.collecting_s + seconds

    def describe(
        self, schedules: Sequence[CallSchedule], sinks_s: float
    ) -> tuple[str, float | None, float]:
        """Describe the count, and return the share of the time and its half-width.

        The least is the time of the watcher's calls: nothing ran beside them. The
        most adds the threads, which delay the program by at most the processor time
        that they take, and what the recording programs are estimated to take longer.

        Args:
            schedules: the watched functions.
            sinks_s: processor seconds that the sinks took.
        """
        elapsed = 0.0
        if self._started is not None:
            elapsed = self._last_call - self._started
        if elapsed <= 0:
            return "nothing is measured yet", None, 0.0
        inside_s = self._inside_s + self.record_s
        warm_s, cold_s = (
            sum(schedule.gate_s[i] * schedule.calls for schedule in schedules)
            for i in (0, 1)
        )
        # The estimate is of a call that records nothing; no program takes all the time.
        programs = min(sum(s.recording_s for s in schedules) / elapsed, 1.0)
        collecting = (self.collecting_s + sinks_s) / elapsed
        # Threads beside each other may take more than all of it.
        least = min((warm_s + inside_s) / elapsed, 1.0)
        most = min((cold_s + inside_s) / elapsed + collecting + programs, 1.0)
        note = (
            f"calls of the watcher took {format_share(least)} of the time, collecting "
            f"{format_share(collecting)} of a processor"
        )
        if schedules:
            note += (
                f", and the programs that record at most {format_share(programs)} "
                "more by estimate"
            )
        note += ": the share is between, effects on caches aside."
        return note, (least + most) / 2, (most - least) / 2


def _held_up_s() -> float:
    """Return how long this thread could have run while others held all processors.

    0 where the system does not tell: the wait counts as time of the watcher then.
    """
    try:
        # The time on a processor, the wait for one, and how often it got one.
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0
