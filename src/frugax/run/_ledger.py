"""Track a run's wall time by stage, and stop the run when its time budget is over.

The clock starts with the process where the command line starts a run, so imports
count. Every stage asks the ledger before it starts.
"""

import contextlib
import enum
import inspect
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from frugax.errors import BudgetExceededError, InfeasibleBudgetError

from ._config import RunConfig

# Held back for writing the report and for the exit of the process.
_ENDING_SHARE, _ENDING_S = 0.02, 1.0
_MOST_SLOWNESS = 10.0
_ALARM_INTERVAL_S = 0.5
_LEAST_ALARM_S, _MOST_ALARM_S = 0.001, 1e8
# A run that is this much later than its limit hangs.
_LATE_SHARE, _LATE_S = 0.1, 5.0


class Part(enum.StrEnum):
    """The parts of a run's time; a value is its name in the receipt."""

    STARTING = "starting Python"
    BEFORE_RESUME = "before the resume"
    BUILDING = "building the model"
    EVALUATING = "evaluating"
    FINGERPRINTS = "fingerprints"
    PLANNING = "planning and compiling"
    PLANNING_FILE = "planning the model file"
    TRAINING = "training steps"
    DATA = "waiting for data"
    WATCHING = "watching"
    CHECKPOINTS = "checkpoints"
    COMPRESSING = "compressing"


class Ledger:
    """Wall time by parts, against a limit.

    Attributes:
        limit_s: the limit of the whole run; None without one.
        spent: seconds by part.
        reserved: seconds that later parts need.
        discard: removes the new run's folder, until training starts; or None.
        on_stuck: called by another thread with the refusal if the time of a `deadline`
            is over and the main thread has not heard of it, because it is in a
            compilation. It should end the process.
    """

    def __init__(
        self,
        limit_s: float | None = None,
        *,
        elapsed_s: float = 0.0,
        refuses: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        """Start the ledger.

        Args:
            limit_s: the limit; None for no limit.
            elapsed_s: seconds spent before, for example on imports.
            refuses: whether a stage may be refused. A resumed run has results already:
                it ends with them, whatever the time.
            clock: reads the time in seconds.
            cpu_clock: reads the processor time of this process in seconds.
        """
        self._clock = clock
        self._refuses = refuses
        # The default clock is monotonic, so setting the system's time spends no budget.
        self._start = self._began = clock() - elapsed_s
        self._cpu_clock = cpu_clock
        # Of the seconds before, the processor time is that of the process so far.
        self._cpu_start = 0.0 if elapsed_s else cpu_clock()
        self.limit_s = limit_s
        self.spent: dict[Part, float] = {}
        self.reserved: dict[Part, float] = {}
        self.discard: Callable[[], None] | None = None
        self.on_stuck: Callable[[Exception], None] | None = None
        if elapsed_s:
            self.spent[Part.STARTING] = elapsed_s

    @property
    def total(self) -> float:
        """Seconds since the start, earlier parts included."""
        return self._clock() - self._start

    @property
    def reserve_s(self) -> float:
        """Seconds that the stages after training need."""
        return sum(self.reserved.values()) + self._ending_s

    @property
    def _ending_s(self) -> float:
        # The end takes about a second of a processor. What of one other programs leave
        # to this process shows in the time that it has had so far.
        cpu_s = max(self._cpu_clock() - self._cpu_start, 1e-9)
        slowness = (self._clock() - self._began) / cpu_s
        ending_s = _ENDING_S * min(max(slowness, 1.0), _MOST_SLOWNESS)
        return ending_s + _ENDING_SHARE * (self.limit_s or 0.0)

    @property
    def left_s(self) -> float:
        """Seconds left until the later stages must start; infinite without a limit."""
        if self.limit_s is None:
            return math.inf
        return self.limit_s - self.total - self.reserve_s

    def allowance_s(self, part: Part) -> float:
        """Return the seconds that a part may take, its own reserve included."""
        return self.left_s + self.reserved.get(part, 0.0)

    def add_elapsed(self, seconds: float) -> None:
        """Add the time that the run took before it was resumed."""
        # With an earlier start, `total` and every budget of time count those parts,
        # too.
        self._start -= seconds
        self.spent[Part.BEFORE_RESUME] = seconds

    def add(self, part: Part, seconds: float) -> None:
        """Attribute seconds that were measured elsewhere to `part`."""
        self.spent[part] = self.spent.get(part, 0.0) + seconds

    @contextlib.contextmanager
    def measure(self, part: Part) -> Iterator[None]:
        """Attribute the time of a block to `part`."""
        started = self._clock()
        try:
            yield
        finally:
            self.add(part, self._clock() - started)

    def check(self, *, stage: str, needs_s: float = 0.0) -> None:
        """Refuse to start a stage for which no time is left."""
        if self._refuses and self.left_s <= needs_s:
            raise self.refusal(stage)

    def refusal(self, stage: str, *, needed_s: float | None = None) -> Exception:
        """Build the error of a run that cannot end in time."""
        assert self.limit_s is not None  # without a limit there is always time
        if needed_s is None:
            # Nobody knows how long the rest takes; twice as long so far was enough.
            needed_s = 2 * (self.total + self.reserve_s)
        return InfeasibleBudgetError(
            f"budgets.time: this run, to take one step on this machine now ({stage}, "
            f"after {self.total:.3g} s),",
            # In tenths of a second, rounded up, so that it suffices.
            needed=math.ceil(10 * needed_s) / 10,
            limit=self.limit_s,
            unit="seconds",
            hint="try again: the compile cache has its programs so far.",
            proven=False,
        )

    @contextlib.contextmanager
    def deadline(self, stage: str) -> Iterator[None]:
        """Interrupt the block when no time is left, between two of its operations.

        Only the main thread can be interrupted; elsewhere the block just runs.
        """
        self.check(stage=stage)
        refuse = lambda: self.refusal(stage)
        with self._alarm(self.left_s, refuse, patience_s=self._ending_s / 2):
            yield

    @contextlib.contextmanager
    def stop_hanging(self) -> Iterator[None]:
        """Interrupt the block well after the limit, when something in it hangs.

        Training and the stages after it end in time by themselves, or a little late.

        Raises:
            BudgetExceededError: a tenth more than the limit was over.
        """

        def refuse() -> Exception:
            return BudgetExceededError(
                f"budgets.time: the limit of {self.limit_s:g} s was over for "
                f"{self.total - (self.limit_s or 0.0):.3g} s, and a function of the "
                "task (batches, loss, evaluate or show) had not returned."
            )

        left_s = math.inf
        if self.limit_s is not None:
            left_s = (1 + _LATE_SHARE) * self.limit_s + _LATE_S - self.total
        with self._alarm(left_s, refuse, patience_s=_LATE_S):
            yield

    @contextlib.contextmanager
    def _alarm(
        self, left_s: float, error: Callable[[], Exception], *, patience_s: float
    ) -> Iterator[None]:
        """Raise an error in the main thread when the time is over.

        Where it has no effect, `on_stuck` gets it after some more seconds.
        """
        is_main = threading.current_thread() is threading.main_thread()
        usual = signal.SIG_DFL
        can_stop = self._refuses and left_s < _MOST_ALARM_S
        if not (can_stop and is_main and os.name == "posix"):
            yield
            return
        if signal.getsignal(signal.SIGALRM) != usual:
            yield  # the program has a timer of its own
            return

        def stop(_: int, frame: FrameType | None) -> None:
            # JAX's callback of the garbage collector would swallow it, with a printed
            # traceback; the timer comes again soon. And while the block ends, an error
            # would leave the timer on for good.
            in_callback = frame is not None and (
                frame.f_code.co_name == "_xla_gc_callback"
            )
            if not in_callback and not _is_ending(frame):
                raise error()

        signal.signal(signal.SIGALRM, stop)
        # Again and again: callbacks of other libraries may swallow one exception.
        # At least a moment: 0 would stop the timer, and less is an error.
        left_s = max(left_s, _LEAST_ALARM_S)
        signal.setitimer(signal.ITIMER_REAL, left_s, _ALARM_INTERVAL_S)
        leave = lambda: self.on_stuck and self.on_stuck(error())
        stuck = threading.Timer(left_s + patience_s, leave)
        stuck.daemon = True
        if self.on_stuck is not None:
            stuck.start()
        try:
            yield
        finally:
            stuck.cancel()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, usual)


def _is_ending(frame: FrameType | None) -> bool:
    """Whether a frame is of the end of `Ledger._alarm`'s block, or called there."""
    if frame is not None and frame.f_code.co_filename == contextlib.__file__:
        return True
    # While the block runs, the generator is suspended, and none of these frames.
    code = inspect.unwrap(Ledger._alarm).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def start_ledger(config: RunConfig, *, resume: bool = False) -> Ledger:
    """Start the ledger of a run with this process, before the slow imports.

    Args:
        config: the run's config.
        resume: whether the run has results already, and ends with them.
    """
    time = config.budgets.time
    limit = None if time is None else time.seconds
    return Ledger(limit, elapsed_s=process_seconds(), refuses=not resume)


def process_seconds() -> float:
    """Return the age of this process in seconds; 0 where the system does not tell."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # The name of the program, in brackets, may hold blanks.
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/uptime", encoding="ascii") as file:
            uptime_s = float(file.read().split()[0])
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, uptime_s - started_s)
