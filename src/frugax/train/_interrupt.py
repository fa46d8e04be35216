"""Ctrl-C as a request: the first one asks, the second one insists."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def asking_first() -> Iterator[threading.Event]:
    """In this block the first Ctrl-C sets an event; the next raises as usual.

    Only the main thread may do this, and a program with a handler of its own for
    SIGINT keeps it: then the event is never set.

    Yields:
        The event.
    """
    asked = threading.Event()
    default = signal.default_int_handler
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is default
    )
    if not ours:
        yield asked
        return

    def ask(signum: int, frame: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, default)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, default)
