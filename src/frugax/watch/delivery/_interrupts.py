"""Defer Ctrl-C while the main thread is inside a program's host callback."""

import signal
import sys
import threading
import time
from types import TracebackType

# Pause between two looks at whether the main thread has left the program's callbacks:
# short for a person who waits, and cheap (a look walks one thread's frames).
_POLL_S = 0.005
# A training loop may be inside JAX nearly all the time. After this time the interrupt
# is delivered anyway: JAX may then report an internal error, but the loop stops.
_MAX_DEFER_S = 2.0


class Interrupts:
    """A context that Ctrl-C does not break off; the interrupt arrives afterwards.

    An exception that leaves a callback makes JAX end the whole program with an internal
    error. The first Ctrl-C inside the context is therefore kept, and sent again when
    the main thread has left JAX or after two seconds. A second Ctrl-C leaves the
    context at once, as usual. Ctrl-C while XLA itself computes is not seen here.
    """

    def __init__(self) -> None:
        self._depth = 0  # nested contexts of the main thread
        self._kept = False
        self._sent = False

    def __enter__(self) -> None:
        if _is_main_thread():
            if self._depth == 0 and self._sent:
                # The main thread has been outside since, so it has got the interrupt.
                self._kept = self._sent = False
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not _is_main_thread():
            return False
        self._depth -= 1
        if kind is not KeyboardInterrupt:
            return False
        if self._kept and not self._sent:
            # The second Ctrl-C gets out, so the first need not be sent any more.
            self._kept = False
            return False
        self._kept, self._sent = True, False
        threading.Thread(
            target=self._send_later, name="frugax Ctrl-C", daemon=True
        ).start()
        return True

    def _send_later(self) -> None:
        deadline = time.monotonic() + _MAX_DEFER_S
        while self._depth or (_is_in_jax() and time.monotonic() < deadline):
            time.sleep(_POLL_S)
        if self._kept:
            self._sent = True
            _interrupt_main_thread()


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        # Unlike `raise_signal`, this also wakes the thread from a system call.
        signal.pthread_kill(main, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


def _is_in_jax() -> bool:
    """Return whether the main thread is in a call of JAX, which may wait for us."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in {"jax", "jaxlib"}:
            return True
        frame = frame.f_back
    return False


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
