"""Ctrl-C and SIGTERM as requests: the first asks to stop, the second insists."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


# Set an event at the first Ctrl-C within this block; the next acts as usual.
#
# Only the main thread can do this, and a program's own handler of a signal stays in
# place: then the event is never set.
@contextlib.contextmanager
def catch_interrupts(*, also_terminate: bool) -> Iterator[threading.Event]:
    asked = threading.Event()
    terminated = threading.Event()
    defaults: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    if also_terminate:
        defaults[signal.SIGTERM] = signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread():
        defaults = {}
    caught = {n: usual for n, usual in defaults.items() if signal.getsignal(n) == usual}

    def ask(signum: int, frame: object) -> None:
        asked.set()
        if signum == signal.SIGTERM:
            terminated.set()
        signal.signal(signum, caught[signum])

    for signum in caught:
        signal.signal(signum, ask)
    try:
        yield asked
    finally:
        for signum, usual in caught.items():
            signal.signal(signum, usual)
    if terminated.is_set():
        raise SystemExit(128 + signal.SIGTERM)
