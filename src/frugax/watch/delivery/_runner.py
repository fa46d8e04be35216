"""Running somebody's function in another thread, for no longer than one is willing."""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

Ended: TypeAlias = Literal["done", "failed", "hung", "not started"]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of a call.

    Attributes:
        ended: how; "not started" where too many others hang, or no thread can be had.
        seconds: what it took, or how long it was waited for.
        error: what was raised, as text; empty if nothing was.
    """

    ended: Ended
    seconds: float
    error: str = ""


class _Job:
    """A call, and what has become of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.done = threading.Lock()  # held until the call has ended
        self.done.acquire()
        self.outcome: Outcome | None = None
        self.given_up = False


class Runner:
    """Runs calls in threads of its own; nothing that a call raises gets out.

    A call that is not waited for any longer goes on in its thread, which is used again
    when it has ended. With `most_hung` such threads, nothing more is started.
    """

    def __init__(self, *, most_hung: int = 4) -> None:
        """Nothing runs before the first call."""
        self._most_hung = most_hung
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Job]] = []
        self._hung = 0

    @property
    def hung(self) -> int:
        """How many calls go on that nobody waits for any longer."""
        return self._hung

    def run(self, call: Callable[[], object], *, wait_s: float) -> Outcome:
        """Call something and wait until it ends.

        Args:
            call: whatever it does; never in the main thread.
            wait_s: how long to wait at most.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed while the main thread waited here; the
                call goes on alone.
        """
        job = _Job(call)
        with self._lock:
            if self._hung >= self._most_hung:
                return Outcome("not started", 0.0, f"{self._hung} others hang")
            inbox = self._idle.pop() if self._idle else None
        try:
            (inbox or self._start()).put(job)
        except RuntimeError as e:  # no more threads, or the interpreter is ending
            return Outcome("not started", 0.0, error_text(e))
        try:
            job.done.acquire(timeout=wait_s)
        finally:
            with self._lock:
                if job.outcome is None:
                    job.given_up = True
                    self._hung += 1
        return job.outcome or Outcome("hung", wait_s)

    def _start(self) -> "queue.SimpleQueue[_Job]":
        inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        threading.Thread(
            target=self._work, args=(inbox,), name="frugax callback", daemon=True
        ).start()
        return inbox

    def _work(self, inbox: "queue.SimpleQueue[_Job]") -> None:
        while True:
            job = inbox.get()
            outcome = outcome_of(job.call)
            job.call = _nothing  # lets go of its arrays while this thread is idle
            with self._lock:
                job.outcome = outcome
                self._hung -= job.given_up
                self._idle.append(inbox)
            job.done.release()
            del job


def outcome_of(call: Callable[[], object]) -> Outcome:
    """Call something here and now; nothing that it raises gets out."""
    began = time.perf_counter()
    try:
        call()
    # Whatever somebody's function raises, SystemExit too, is told to whoever asked for
    # the call and must not end the program that is watched.
    except BaseException as e:
        return Outcome("failed", time.perf_counter() - began, error_text(e))
    return Outcome("done", time.perf_counter() - began)


def error_text(error: BaseException) -> str:
    """What an error says, in one short line; its text may itself raise."""
    try:
        text = f"{type(error).__name__}: {error}"
    # Its `__str__` is somebody's function too, and may raise whatever that likes.
    except BaseException:
        text = type(error).__name__
    return " ".join(text.split())[:200]


def _nothing() -> None:
    """In the place of a call that is over."""
