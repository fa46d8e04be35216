"""Run a function of the user's, or a sink's, in another thread with a timeout."""

import dataclasses
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


class Runner:
    """Runs calls in threads of their own; no exception of a call gets out.

    An abandoned call goes on in its thread. While `max_hung` calls hang, nothing more
    is started.
    """

    def __init__(self, *, max_hung: int = 4) -> None:
        """Start no thread yet."""
        self._max_hung = max_hung
        self.abandon()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Forget all threads: a forked child has none of them."""
        self._lock = threading.Lock()
        self._hung: list[threading.Thread] = []

    def run(self, call: Callable[[], object], *, wait_s: float) -> Outcome:
        """Call a function in another thread and wait until it ends."""
        # Without a limit, a function that always hangs would leave a thread per call.
        with self._lock:
            self._hung = [thread for thread in self._hung if thread.is_alive()]
            if len(self._hung) >= self._max_hung:
                return Outcome("not started", 0.0, f"{len(self._hung)} others hang")
        outcomes: list[Outcome] = []
        # Daemon: a function that hangs must not keep the process alive when the run
        # ends.
        thread = threading.Thread(
            target=lambda: outcomes.append(run_inline(call)),
            name="frugax callback",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as e:  # no more threads, or the interpreter is exiting
            return Outcome("not started", 0.0, error_text(e))
        try:
            thread.join(wait_s)
        finally:
            if thread.is_alive():
                with self._lock:
                    self._hung.append(thread)
        return outcomes[0] if outcomes else Outcome("hung", wait_s)


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
