"""Ctrl-C while a program waits for a callback: kept until the program is through."""

import signal
import sys
import threading
import time
from types import TracebackType

# Between two looks whether the main thread has left the program's callbacks.
_LOOK_S = 0.005
# A loop may be inside JAX nearly all the time: then this is the price of stopping it.
_LONGEST_S = 2.0


class Interrupts:
    """A block that Ctrl-C does not break off; it comes again when the block is left.

    An exception that leaves a callback makes JAX end the whole program with an
    internal error. The first Ctrl-C inside the block is kept and sent again when the
    main thread has left JAX, or after two seconds; a second one leaves the block at
    once, as usual. Ctrl-C while XLA itself computes is not seen here.
    """

    def __init__(self) -> None:
        self._depth = 0  # how deep the main thread is inside
        self._kept = False
        self._sent = False

    def __enter__(self) -> None:
        if _is_main():
            if self._depth == 0 and self._sent:
                # The main thread has been outside since: it has got what was sent.
                self._kept = self._sent = False
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not _is_main():
            return False
        self._depth -= 1
        if kind is not KeyboardInterrupt:
            return False
        if self._kept and not self._sent:
            self._kept = False  # this one gets out: no need to send the first again
            return False
        self._kept, self._sent = True, False
        threading.Thread(
            target=self._send_later, name="frugax Ctrl-C", daemon=True
        ).start()
        return True

    def _send_later(self) -> None:
        until = time.monotonic() + _LONGEST_S
        while self._depth or (_is_in_jax() and time.monotonic() < until):
            time.sleep(_LOOK_S)
        if self._kept:
            self._sent = True
            _interrupt_main()


def _interrupt_main() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # wakes it from waiting, too
    else:
        signal.raise_signal(signal.SIGINT)


def _is_in_jax() -> bool:
    """Whether the main thread is in a call of JAX, such as one that waits for us."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in {"jax", "jaxlib"}:
            return True
        frame = frame.f_back
    return False


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
