"""Detect lost and hanging processes of a run, and exit with a code that says why.

An ordinary exit waits for the other processes, in vain if one of them is lost. JAX's
own threads end a process by `abort()`, which looks like a crash. Here both become exit
code 75, and a process that fails by itself exits without waiting, so that the others
notice immediately. A peer that hangs in Python does not show at all, because its
heartbeat comes from a C++ thread; so a watchdog watches the progress of training.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import jax

from frugax.options import check_number

# EX_TEMPFAIL of sysexits.h: a failure that another attempt may not meet.
EXIT_PEER_LOST = 75
_EXIT_ERROR = 1
_EXIT_INTERRUPTED = 130

# Parts, in lower case, of the errors of collective operations and of JAX's coordination
# service. Some are raised as JaxRuntimeError, some as ValueError.
_PEER_LOST_MESSAGES = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset by peer",
    "collective operation failed",
    "heartbeat timeout",
    "coordination service",
    "coordinationservice",
    # `run_on_first`
    "the first process failed",
)


def is_peer_lost(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, says that a process is lost."""
    cause: BaseException | None = error
    # Users wrap errors: the collective's own may be the cause of another.
    while cause is not None:
        if isinstance(cause, (jax.errors.JaxRuntimeError, ValueError, RuntimeError)):
            text = str(cause).lower()
            if any(message in text for message in _PEER_LOST_MESSAGES):
                return True
        cause = cause.__cause__
    return False


def exit_now(why: str, *, stacks: bool = False, code: int = EXIT_PEER_LOST) -> None:
    """End this process immediately, without waiting for its peers."""
    _flush()
    # Not through sys.stderr, whose lock another thread may hold for ever.
    os.write(2, f"frugax: {why}. Leaving with exit code {code}.\n".encode())
    if stacks:
        faulthandler.dump_traceback(file=2)
    # Skips atexit, where JAX's own handler would wait for the lost process.
    os._exit(code)


class _ExitState:
    """The facts that decide how this process exits."""

    def __init__(self) -> None:
        self.join_failure = ""  # message while peers are being joined, else empty
        self.is_exiting = False
        self.code: int | None = None  # of an uncaught error


_state = _ExitState()
_callbacks: list[Any] = []  # C holds pointers to these: they must not be collected


@contextlib.contextmanager
def join_peers(failure: str) -> Iterator[None]:
    """Join the other processes in this block; afterwards this process exits our way.

    If the block fails, nothing is changed.
    """
    undo = _intercept_aborts()
    _state.join_failure = failure
    try:
        yield
    except BaseException:  # Ctrl-C while waiting included
        undo()
        raise
    finally:
        _state.join_failure = ""
    sys.excepthook = _wrap_excepthook(sys.excepthook)
    # Registered after JAX's own handler, so it runs before that waits for the others.
    atexit.register(_exit_without_waiting)


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _wrap_excepthook(show: _Hook) -> _Hook:
    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        show(kind, error, trace)
        _flush()  # in atexit it is too late: Python 3.12 starts no thread there
        _state.code = _EXIT_ERROR
        if isinstance(error, KeyboardInterrupt):
            _state.code = _EXIT_INTERRUPTED
        elif is_peer_lost(error):
            _state.code = EXIT_PEER_LOST

    return hook


def _exit_without_waiting() -> None:
    _state.is_exiting = True
    if _state.code == EXIT_PEER_LOST:
        exit_now("another process is gone")
    if _state.code is not None:
        exit_now("the others are not waited for", code=_state.code)


def _intercept_aborts() -> Callable[[], object]:
    """Turn an abort by JAX's coordination service into exit code 75; return the undo.

    Such an abort comes on a thread that Python did not start, or while joining or
    exiting. Any other abort on one of Python's own threads is a crash and stays one.
    """
    if os.name != "posix":
        return lambda: None
    libc = ctypes.CDLL(None)

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def on_abort(_: int) -> None:
        thread = threading.get_ident()
        if _state.join_failure:
            exit_now(_state.join_failure)
        is_foreign = all(t.ident != thread for t in threading.enumerate())
        if _state.is_exiting or is_foreign:
            exit_now("JAX ended this process, as it says above: another one is gone")
        # Where this returns, abort() ends the process by its signal.

    _callbacks.append(on_abort)
    # Python's own signal module cannot be used: its handlers run on the main thread,
    # between bytecodes, and abort() never gets back to those.
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    before = libc.signal(signal.SIGABRT, ctypes.cast(on_abort, ctypes.c_void_p))
    return lambda: libc.signal(signal.SIGABRT, before)


def _flush() -> None:
    """Print buffered output; a blocked pipe delays the exit by a second at most."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()

    with contextlib.suppress(RuntimeError):  # Python starts no thread any more
        thread = threading.Thread(target=flush, daemon=True)
        thread.start()
        thread.join(1.0)


# --- the watchdog ---------------------------------------------------------------------

_NUM_REMEMBERED = 500
# If the watching thread slept this much longer than intended, the whole process was
# suspended, and its peers may be well.
_SUSPENDED_S = 5.0
_active: list["Watchdog"] = []


@contextlib.contextmanager
def pause_watchdogs() -> Iterator[None]:
    """Give every active watchdog the patience for a compilation in this block."""
    with contextlib.ExitStack() as stack:
        for watchdog in _active:
            stack.enter_context(watchdog.phase("compilation"))
        yield


class Watchdog:
    """Ends the process with exit code 75 when training makes no progress.

    `fit` makes one in runs of several processes. In a loop of your own, use it as a
    context manager and call `beat` after each step that was waited for.

    Attributes:
        min_s: the least patience in seconds.
        factor: patience as a multiple of the slowest usual step (99th percentile).
        first_s: patience for a compilation and the step after it, during which peers
            may still be compiling, and for the first evaluation and checkpoint.

    Example:
        >>> with Watchdog(min_s=60) as watchdog:
        ...     for _ in range(3):
        ...         watchdog.beat()
        >>> watchdog.patience_s
        60
    """

    def __init__(
        self,
        *,
        min_s: float = 25.0,
        factor: float = 10.0,
        first_s: float = 1800.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("min_s", min_s), ("factor", factor), ("first_s", first_s)):
            check_number(name, value, above=0, allow_infinite=True)
        self.min_s, self.factor, self.first_s = min_s, factor, first_s
        self._clock = clock
        self._durations: dict[str, deque[float]] = {}
        self._phase = "step"
        self._since = clock()
        self._has_just_compiled = True
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> None:
        """Record that a step is done."""
        self._record()
        self._has_just_compiled = False

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Watch an activity other than a step in this block, with its own patience.

        Args:
            name: name of the activity, such as `"evaluation"`.
        """
        before, self._phase = self._phase, name
        self._since = self._clock()
        self._has_just_compiled |= name == "compilation"
        yield
        self._record()
        self._phase = before

    def _record(self) -> None:
        now = self._clock()
        durations = self._durations.setdefault(
            self._phase, deque(maxlen=_NUM_REMEMBERED)
        )
        durations.append(now - self._since)
        self._since = now

    @property
    def patience_s(self) -> float:
        """Seconds that the current activity may take."""
        durations = sorted(self._durations.get(self._phase, ()))
        # Earlier compilations do not predict the duration of this one.
        is_first = self._has_just_compiled and self._phase in ("compilation", "step")
        if not durations or is_first:
            return self.first_s
        # The 99th percentile: one step delayed by the machine must not double the
        # patience.
        slowest = durations[min(len(durations) - 1, int(0.99 * len(durations)))]
        return max(self.min_s, self.factor * slowest)

    def __enter__(self) -> "Watchdog":
        if self._thread is not None:
            raise RuntimeError(
                "this watchdog is watching already: give it to fit, or use it in a "
                "with-block, not both."
            )
        self._durations.clear()
        self._phase, self._since = "step", self._clock()
        self._has_just_compiled = True
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._watch, name="frugax watchdog", daemon=True
        )
        self._thread.start()
        _active.append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._stopped.set()
        self._thread = None
        _active.remove(self)
        if error is not None and is_peer_lost(error):
            exit_now(f"another process is gone ({str(error).splitlines()[0]:.200})")

    def _watch(self) -> None:
        while True:
            # A hang is noticed at most a tenth of the patience too late.
            nap_s = min(1.0, self.patience_s / 10)
            before = self._clock()
            if self._stopped.wait(nap_s):
                return
            now = self._clock()
            if now - before > nap_s + _SUSPENDED_S:
                # SIGSTOP, or a laptop that slept: the time did not pass for the peers'
                # messages.
                self._since += now - before
            silent_s, patience_s = now - self._since, self.patience_s
            if silent_s > patience_s:
                exit_now(
                    f"no {self._phase} was done for {silent_s:.0f} s, and at most "
                    f"{patience_s:.0f} s is usual: a process of this run hangs",
                    stacks=True,
                )
