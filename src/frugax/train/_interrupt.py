"""Ctrl-C and SIGTERM as a request: the first one asks, the second one insists."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def asking_first(*, also_terminate: bool) -> Iterator[threading.Event]:
    """In this block the first Ctrl-C sets an event; the next one does as usual.

    Only the main thread may do this, and a program with a handler of its own for a
    signal keeps it: then the event is never set.

    Args:
        also_terminate: take SIGTERM for a request too. It is one to end the process,
            and so that is done at the end of the block.

    Yields:
        The event.

    Raises:
        SystemExit: SIGTERM came. Ending by the signal itself would close no files.
    """
    asked = threading.Event()
    ended: list[int] = []
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    if also_terminate:
        usual[signal.SIGTERM] = signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread():
        usual = {}
    ours = {
        n: default for n, default in usual.items() if signal.getsignal(n) == default
    }

    def ask(signum: int, frame: object) -> None:
        asked.set()
        if signum == signal.SIGTERM:
            ended.append(signum)
        signal.signal(signum, ours[signum])

    for signum in ours:
        signal.signal(signum, ask)
    try:
        yield asked
    finally:
        for signum, default in ours.items():
            signal.signal(signum, default)
    if ended:
        raise SystemExit(128 + signal.SIGTERM)
