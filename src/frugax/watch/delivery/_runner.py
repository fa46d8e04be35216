"""Run a function of the user's, or a sink's, in another thread with a timeout."""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
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


_Job: TypeAlias = tuple[Callable[[], object], "Future[Outcome]"]


class Runner:
    """Runs calls in threads of its own; no exception of a call gets out.

    An abandoned call goes on in its thread, which is reused once the call has ended.
    While `max_hung` calls hang, nothing more is started.
    """

    def __init__(self, *, max_hung: int = 4) -> None:
        """Start no thread yet."""
        self._max_hung = max_hung
        self.abandon()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Forget all threads: a forked child has none of them."""
        self._lock = threading.Lock()
        self._hung: list[Future[Outcome]] = []
        # Threads are reused, since starting one costs more than most callbacks.
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)  # threads that wait for a job

    def run(self, call: Callable[[], object], *, wait_s: float) -> Outcome:
        """Call a function in another thread and wait until it ends."""
        # Without a limit, a function that always hangs would leave a thread per call.
        with self._lock:
            self._hung = [one for one in self._hung if not one.done()]
            if len(self._hung) >= self._max_hung:
                return Outcome("not started", 0.0, f"{len(self._hung)} others hang")
        if not self._idle.acquire(blocking=False):
            try:
                # Daemon: a function that hangs must not keep the process alive when
                # the run ends.
                threading.Thread(
                    target=self._serve, name="frugax callback", daemon=True
                ).start()
            except RuntimeError as e:  # no more threads, or the interpreter is exiting
                return Outcome("not started", 0.0, error_text(e))
        outcome: Future[Outcome] = Future()
        self._jobs.put((call, outcome))
        try:
            return outcome.result(wait_s)
        except TimeoutError:
            return Outcome("hung", wait_s)
        finally:
            if not outcome.done():
                with self._lock:
                    self._hung.append(outcome)

    def _serve(self) -> None:
        while True:
            call, outcome = self._jobs.get()
            outcome.set_result(run_inline(call))
            # An idle thread must not keep the arrays of its last call alive.
            del call, outcome
            self._idle.release()


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
