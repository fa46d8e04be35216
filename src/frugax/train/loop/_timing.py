"""Account for the wall time of training, and limit how far JAX runs ahead of Python."""

import collections
import dataclasses
import statistics
import time
from collections.abc import Callable

from frugax.budget import format_seconds, format_share, table

# Long enough to hide a wait of about 0.1 ms; short enough for Ctrl-C and for the last
# seconds of a budget.
_AHEAD_SECONDS = 0.25
# The slowest of this many waits bounds the duration of the next step.
_NUM_REMEMBERED = 5
# Duration of a step that began and ended between two ticks of the clock.
_TICK_S = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeLedger:
    """Wall seconds of a run, each counted once.

    Attributes:
        compile_s: planning and compiling the step.
        run_s: taking steps: dispatch, and waiting for the device.
        data_s: waiting for batches.
        host_s: `on_step`, and all other Python code.
        io_s: writing checkpoints.
        eval_s: evaluating.
    """

    compile_s: float = 0.0
    run_s: float = 0.0
    data_s: float = 0.0
    host_s: float = 0.0
    io_s: float = 0.0
    eval_s: float = 0.0

    @property
    def wall_s(self) -> float:
        """The sum of all parts."""
        return sum(dataclasses.astuple(self))

    def __str__(self) -> str:
        wall = self.wall_s or 1.0
        rows = [
            [name.removesuffix("_s"), format_seconds(part), format_share(part / wall)]
            for name, part in [
                *dataclasses.asdict(self).items(),
                ("wall_s", self.wall_s),
            ]
        ]
        return table(["part", "time", "share"], rows)


class LapClock:
    """A stopwatch that assigns every moment to exactly one part of the run."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds = {field.name: 0.0 for field in dataclasses.fields(TimeLedger)}

    def lap(self, part: str, *, of_which: tuple[str, float] = ("run_s", 0.0)) -> float:
        """Assign the time since the last lap to `part`, and return it."""
        now = self._clock()
        lap, self._last = now - self._last, now
        other, other_s = of_which
        # Compiling inside of a step is part of its lap, but belongs to another part.
        self.seconds[part] += lap - other_s
        self.seconds[other] += other_s
        return lap

    @property
    def elapsed(self) -> float:
        """Seconds up to the last lap."""
        return sum(self.seconds.values())

    @property
    def now(self) -> float:
        """Seconds up to this moment."""
        return self.elapsed + self._clock() - self._last

    def to_ledger(self) -> TimeLedger:
        """Return the seconds up to the last lap."""
        return TimeLedger(**self.seconds)


class Pace:
    """Seconds per step over the last few waits, and the steps to take before the next.

    Waiting after every step would stall the device; never waiting would overrun the
    time and detect a NaN too late.
    """

    def __init__(self) -> None:
        self._seconds: collections.deque[float] = collections.deque(
            maxlen=_NUM_REMEMBERED
        )
        self._last_steps = 0

    def record(self, *, steps: int, seconds: float) -> None:
        """Record the steps and seconds from one wait to the next."""
        self._seconds.append(max(seconds / steps, _TICK_S))
        self._last_steps = steps

    @property
    def usual_s(self) -> float | None:
        """Median seconds of a step; None before the third wait."""
        return statistics.median(self._seconds) if len(self._seconds) > 2 else None

    @property
    def slowest_s(self) -> float:
        """Seconds of the slowest step remembered; 0 before the first wait."""
        return max(self._seconds, default=0.0)

    def steps_ahead(self, *, left_s: float | None) -> int:
        """Return the steps to take before the next wait; 0 if not even one fits."""
        if not self._seconds:
            # The first step is taken without knowing how long it takes.
            is_over = left_s is not None and left_s <= 0
            return int(not is_over)
        slowest = self.slowest_s
        # At most twice as many as last time, so that one fast step decides little.
        ahead = min(2 * self._last_steps, max(1, int(_AHEAD_SECONDS / slowest)))
        if left_s is None:
            return ahead
        if left_s < slowest:
            return 0
        # Half of the steps that fit: the nearer the end, the more often to look.
        return min(ahead, max(1, int(left_s / slowest / 2)))
