"""Run a function of the user's, or a sink's, in another thread with a timeout."""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from frugax.fileio import abandon_in_children

Ended: TypeAlias = Literal["done", "failed", "hung", "not started", "skipped"]


class CallSkipped(Exception):
    """Raised by a function that has decided not to run this time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a call has ended.

    Attributes:
        ended: "not started" means that too many other calls hang, or that no thread was
            available; "skipped", that it raised `CallSkipped`.
        seconds: duration of the call, or of the wait for it.
        error: text of the error that it raised; empty if it did not raise.
    """

    ended: Ended
    seconds: float
    error: str = ""


class _Job:
    """A call and its outcome."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.done = threading.Lock()  # held until the call has ended
        self.done.acquire()
        self.outcome: Outcome | None = None
        self.abandoned = False


class Runner:
    """Runs calls in threads of its own; no exception of a call gets out.

    An abandoned call goes on in its thread, which is reused once the call has ended.
    While `max_hung` calls hang, nothing more is started.
    """

    def __init__(self, *, max_hung: int = 4) -> None:
        """Start no thread yet."""
        self._max_hung = max_hung
        # Threads are reused, since starting one costs more than most callbacks.
        self._idle: list[queue.SimpleQueue[_Job]] = []
        self.abandon()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Forget all threads: a forked child has none of them."""
        self._lock = threading.Lock()
        self._idle.clear()
        self._hung = 0

    def run(self, call: Callable[[], object], *, wait_s: float) -> Outcome:
        """Call a function in another thread and wait until it ends."""
        job = _Job(call)
        # Without a limit, a function that always hangs would leave a thread per call.
        with self._lock:
            if self._hung >= self._max_hung:
                return Outcome("not started", 0.0, f"{self._hung} others hang")
            inbox = self._idle.pop() if self._idle else None
        try:
            (inbox or self._start_thread()).put(job)
        except RuntimeError as e:  # no more threads, or the interpreter is exiting
            return Outcome("not started", 0.0, error_text(e))
        try:
            job.done.acquire(timeout=wait_s)
        finally:
            # The lock decides races between the end of the wait and of the call: the
            # thread either sees `abandoned`, or its outcome is seen here.
            with self._lock:
                if job.outcome is None:
                    job.abandoned = True
                    self._hung += 1
        return job.outcome or Outcome("hung", wait_s)

    def _start_thread(self) -> "queue.SimpleQueue[_Job]":
        inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        # Daemon: a function that hangs must not keep the process alive when the run
        # ends.
        threading.Thread(
            target=self._serve, args=(inbox,), name="frugax callback", daemon=True
        ).start()
        return inbox

    def _serve(self, inbox: "queue.SimpleQueue[_Job]") -> None:
        while True:
            job = inbox.get()
            outcome = run_inline(job.call)
            # An idle thread must not keep the arrays of its last call alive.
            job.call = _do_nothing
            with self._lock:
                job.outcome = outcome
                self._hung -= job.abandoned
                self._idle.append(inbox)
            job.done.release()
            del job


def run_inline(call: Callable[[], object]) -> Outcome:
    """Call a function in this thread; no exception of it gets out."""
    began = time.perf_counter()
    try:
        call()
    except CallSkipped:
        return Outcome("skipped", time.perf_counter() - began)
    # Any exception of a user's function, SystemExit too, is reported to whoever asked
    # for the call; it must not end the program that is watched.
    except BaseException as e:
        return Outcome("failed", time.perf_counter() - began, error_text(e))
    return Outcome("done", time.perf_counter() - began)


def error_text(error: BaseException) -> str:
    """Return the type and message of an error in one short line."""
    try:
        text = f"{type(error).__name__}: {error}"
    # `__str__` is a user's function too, and may raise anything.
    except BaseException:
        text = type(error).__name__
    return " ".join(text.split())[:200]


def _do_nothing() -> None:
    """Stand in for a call that has ended."""
