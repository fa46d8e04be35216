"""`OverheadAccount`: the share of a run's time that its watcher has taken so far."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from frugax.budget import format_share

from ._call_schedule import CallSchedule
from ._collector import Collector
from ._dispatch import Dispatch

# Notes on a measurement, the share of time that was added, and its half-width.
_Described = tuple[list[str], float | None, float]


class OverheadAccount:
    """Sums what a watcher has taken: its calls, its thread, and its programs.

    Waiting for a processor that other programs hold is not counted: they would have
    held it without a watcher too. Calls count by the processor time of their thread,
    and blocks, which may wait for a disk, by the clock less that wait.

    Attributes:
        record_s: processor seconds spent in `Watcher.record`.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        schedules: Sequence[CallSchedule],
        collector: Collector,
        dispatch: Dispatch,
    ) -> None:
        """Count from the first `touch`.

        Args:
            clock: in seconds. Any but `time.perf_counter` measures calls as well.
            schedules: the watched functions; may grow.
            collector: tells the processor time of collecting.
            dispatch: tells the processor time of the sinks.
        """
        self.record_s = 0.0
        self._clock = clock
        is_usual = clock is time.perf_counter
        self.call_clock = time.thread_time if is_usual else clock
        self._held_up_s = _held_up_s if is_usual else lambda: 0.0
        self._schedules = schedules
        self._collector = collector
        self._dispatch = dispatch
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
                spent = self._clock() - entered - (self._held_up_s() - held_up)
                self._inside_s += max(spent, 0.0)

    def can_afford(self, seconds: float) -> bool:
        """Return whether these seconds can be spent now within the budget."""
        if self._started is None:
            return False
        inside_s = self._inside_s + self.record_s
        elapsed = self._clock() - self._started - inside_s
        allowed = self._collector.limit * elapsed
        return allowed >= inside_s + self._collector.cpu_s + seconds

    def describe(self) -> _Described:
        """Return notes on the count, the share and its half-width.

        The least is what the calls of the watcher took: nothing ran beside them. The
        most adds the threads, which delay the program by at most the processor time
        that they take, and what the recording programs are estimated to take longer.
        """
        elapsed = self._elapsed_s()
        if elapsed <= 0:
            return ["nothing is measured yet"], None, 0.0
        inside_s = self._inside_s + self.record_s
        warm_s, cold_s = (
            sum(schedule.gate_s[i] * schedule.calls for schedule in self._schedules)
            for i in (0, 1)
        )
        programs = sum(s.recording_s for s in self._schedules) / elapsed
        # Processor time of collecting and of the sinks.
        collecting = (self._collector.cpu_s + self._dispatch.cpu_s) / elapsed
        least = (warm_s + inside_s) / elapsed
        most = (cold_s + inside_s) / elapsed + collecting + programs
        note = (
            f"calls of the watcher took {format_share(least)} of the time, collecting "
            f"{format_share(collecting)} of a processor"
        )
        if self._schedules:
            note += (
                f", and the programs that record at most {format_share(programs)} "
                "more by estimate"
            )
        note += ": the share is between, effects on caches aside."
        return [note], (least + most) / 2, (most - least) / 2

    def _elapsed_s(self) -> float:
        if self._started is None:
            return 0.0
        return self._last_call - self._started


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
