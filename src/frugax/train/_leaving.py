"""How a process of several leaves: at once, and with an exit code that says why.

Leaving in the ordinary way waits at the door for the other processes, and where one of
them is gone it waits in vain. JAX's own threads end a process by `abort()`, which looks
like a crash. Here both become exit code 75, and a process that fails by itself leaves
without waiting, so that the others find out at once.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import jax

# EX_TEMPFAIL of sysexits.h: worth another try.
EXIT_PEER_LOST = 75
_EXIT_ERROR = 1
_EXIT_INTERRUPTED = 130

# What the errors of collective operations and of JAX's coordination service hold, in
# lower case; some come as JaxRuntimeError, some as ValueError.
_SIGNS = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset by peer",
    "collective operation failed",
    "heartbeat timeout",
    "coordination service",
    "coordinationservice",
)


def is_peer_lost(error: BaseException) -> bool:
    """Whether an error says that another process is gone, itself or by its cause."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (jax.errors.JaxRuntimeError, ValueError, RuntimeError)):
            said = str(seen).lower()
            if any(sign in said for sign in _SIGNS):
                return True
        seen = seen.__cause__
    return False


def leave(why: str, *, stacks: bool = False, code: int = EXIT_PEER_LOST) -> None:
    """End this process now, without waiting for peers at the door.

    Args:
        why: said on stderr.
        stacks: also say where every thread is.
        code: what to end with.
    """
    _flush()
    # Not through sys.stderr: another thread may hold its lock for ever.
    os.write(2, f"frugax: {why}. Leaving with exit code {code}.\n".encode())
    if stacks:
        faulthandler.dump_traceback(file=2)
    os._exit(code)


def why_lost(error: BaseException) -> str:
    """One line about an error of a collective operation."""
    return f"another process is gone ({str(error).splitlines()[0]:.200})"


class _Door:
    """What is known when this process comes to its end."""

    def __init__(self) -> None:
        self.joining = ""  # what to say if the others do not come
        self.reached = False
        self.code: int | None = None  # of an error that nobody caught


_door = _Door()
_kept: list[Any] = []  # what C may call must not be collected


@contextlib.contextmanager
def joining(alone: str) -> Iterator[None]:
    """In this block the other processes are joined; from then on we leave this way.

    Where nobody is joined nothing is changed.

    Args:
        alone: said where the others do not come, for which JAX aborts.
    """
    undo = _answer_aborts()
    _door.joining = alone
    try:
        yield
    except BaseException:  # also Ctrl-C while waiting: who has not joined is left alone
        undo()
        raise
    finally:
        _door.joining = ""
    sys.excepthook = _noting(sys.excepthook)
    # Registered later than JAX's own, so it runs before that waits for the others.
    atexit.register(_at_the_door)


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _noting(show: _Hook) -> _Hook:
    def note(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        show(kind, error, trace)
        _flush()  # at the door it is too late: Python 3.12 starts no thread there
        _door.code = _EXIT_ERROR
        if isinstance(error, KeyboardInterrupt):
            _door.code = _EXIT_INTERRUPTED
        elif is_peer_lost(error):
            _door.code = EXIT_PEER_LOST

    return note


def _at_the_door() -> None:
    _door.reached = True
    if _door.code == EXIT_PEER_LOST:
        leave("another process is gone")
    if _door.code is not None:
        leave("the others are not waited for", code=_door.code)


def _answer_aborts() -> Callable[[], object]:
    """Turn an abort by JAX's coordination service into exit code 75.

    It comes on a thread that Python never started, or while joining or leaving. Any
    other abort on one of Python's own threads is a crash, and stays one.

    Returns:
        What undoes it.
    """
    if os.name != "posix":
        return lambda: None
    libc = ctypes.CDLL(None)

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def answer(_: int) -> None:
        here = threading.get_ident()
        if _door.joining:
            leave(_door.joining)
        if _door.reached or all(t.ident != here for t in threading.enumerate()):
            leave("JAX ended this process, as it says above: another one is gone")
        # Coming back from here, abort() ends the process by its signal.

    _kept.append(answer)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    ours = ctypes.cast(answer, ctypes.c_void_p)
    before = libc.signal(signal.SIGABRT, ours)
    return lambda: libc.signal(signal.SIGABRT, before)


def _flush() -> None:
    """Print what is still in buffers, but never wait long for that."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()

    with contextlib.suppress(RuntimeError):  # no thread can be started any more
        thread = threading.Thread(target=flush, daemon=True)
        thread.start()
        thread.join(1.0)
