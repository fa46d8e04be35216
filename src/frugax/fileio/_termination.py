"""Finish files before SIGTERM ends the process, as it would have ended it.

A cluster ends a run by SIGTERM at its time limit, which skips `atexit` and `finally`.
A handler of Python would run only between two operations of the main thread, so a
program that is busy in compiled code would ignore the signal for as long. Here the
signal wakes a thread by a pipe. Signals that the program handles or ignores itself are
left to it.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

# Clusters send SIGKILL after about thirty seconds.
_FINISH_S = 5.0

_finishers: list[Callable[[], None]] = []
_lock = threading.Lock()
_pipe: tuple[int, int] | None = None
_thread: threading.Thread | None = None
_installed: int | None = None
_is_stopping = False
_has_fork_hooks = False
_mask_before_fork: set[Any] | None = None


def call_before_sigterm(finish: Callable[[], None]) -> None:
    """Call a function when SIGTERM is about to end this process.

    Another thread calls it while the program goes on, for a few seconds at most. Then
    the signal ends the process. In other threads than the main one, and where the
    signal has a handler already or is ignored, this does nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if _pipe is None and is_main and os.name == "posix":
        # JAX's own of several processes is one that Python does not know.
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL or _address():
            return
        _install()
    with _lock:
        _finishers.append(finish)


def forget_before_sigterm(finish: Callable[[], None]) -> None:
    """Undo `call_before_sigterm`; the last one restores the signal."""
    with _lock:
        if finish in _finishers:
            _finishers.remove(finish)
    is_main = threading.current_thread() is threading.main_thread()
    if not _finishers and _pipe is not None and is_main:
        _uninstall()


def is_left_to_default(handler: object) -> bool:
    """Whether a handler of SIGTERM ends the process: Python's, or the one here."""
    return handler is _handle or handler == signal.SIG_DFL


def _handle(_: int, __: object) -> None:
    """Do nothing: Python has written to the pipe, whatever the main thread does."""


def _install() -> None:
    global _pipe, _thread, _installed, _has_fork_hooks
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:  # of an event loop, which needs it
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
        return
    if not _has_fork_hooks:
        _has_fork_hooks = True
        os.register_at_fork(
            before=_before_fork,
            after_in_parent=_after_fork,
            after_in_child=_after_fork_in_child,
        )
    _pipe = reader, writer
    _thread = threading.Thread(
        target=_wait, args=(reader,), name="frugax SIGTERM", daemon=True
    )
    _thread.start()
    signal.signal(signal.SIGTERM, _handle)
    _installed = _address()


def _uninstall() -> None:
    global _pipe, _thread, _is_stopping
    assert _pipe is not None
    assert _thread is not None
    reader, writer = _pipe
    # A signal that came just now still ends the process.
    _is_stopping = signal.getsignal(signal.SIGTERM) is _handle
    _restore()
    _release(writer)
    _thread.join()
    os.close(reader)
    _pipe, _thread, _is_stopping = None, None, False


def _address() -> int | None:
    """The handler of SIGTERM in C; None for the default."""
    read: Any = ctypes.pythonapi.PyOS_getsig
    read.restype = ctypes.c_void_p
    return read(signal.SIGTERM)


def _restore() -> None:
    """Set the default again, unless somebody else has set a handler since."""
    is_ours = signal.getsignal(signal.SIGTERM) is _handle
    if is_ours and _address() == _installed:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _release(writer: int) -> None:
    """Close this end of the pipe, unless Python writes its signals elsewhere now."""
    current = signal.set_wakeup_fd(-1)
    if current not in (writer, -1):
        signal.set_wakeup_fd(current)
    os.close(writer)


def _wait(reader: int) -> None:
    while numbers := os.read(reader, 64):
        # A handler that the program has set since is its own matter.
        is_ours = _is_stopping or signal.getsignal(signal.SIGTERM) is _handle
        if signal.SIGTERM in numbers and is_ours:
            finishing = threading.Thread(target=_finish, daemon=True)
            finishing.start()
            finishing.join(_FINISH_S)
            # Of any thread, unlike `signal.signal`.
            ctypes.pythonapi.PyOS_setsig(signal.SIGTERM, ctypes.c_void_p(0))
            os.kill(os.getpid(), signal.SIGTERM)


def _finish() -> None:
    for finish in reversed(_finishers):
        try:
            finish()
        # One that fails, whatever it raises, must not keep the others from it.
        except BaseException as e:
            sys.stderr.write(f"frugax: at SIGTERM: {type(e).__name__}: {e}\n")


# A child that is ended before it has let go of the pipe would end its parent.
def _before_fork() -> None:
    global _mask_before_fork
    if _pipe is not None:
        _mask_before_fork = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    global _mask_before_fork
    before, _mask_before_fork = _mask_before_fork, None
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    global _pipe, _thread, _lock
    _lock = threading.Lock()
    _finishers.clear()
    if _pipe is not None:
        _restore()
        _release(_pipe[1])
        os.close(_pipe[0])
        _pipe = _thread = None
    _after_fork()
