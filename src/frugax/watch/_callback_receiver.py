"""Receive callbacks of a program: records that nobody collects, and calls.

A program that nobody collects from, such as one compiled by plain `jax.jit`, hands its
records over through a callback. Nothing that happens here may end or stop that program.
"""

import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ._current import current
from .delivery import error_text, write_message
from .probes import Probe, ProbeResult

# Pause between two looks at whether the main thread has left the program's callbacks:
# short for a person who waits, and cheap (a look walks one thread's frames).
_POLL_S = 0.005
# A training loop may be inside JAX nearly all the time. After this time the interrupt
# is delivered anyway: JAX may then report an internal error, but the loop stops.
_MAX_DEFER_S = 2.0


class _Calls:
    """Whether handlers are called."""

    are_ignored = False


@contextlib.contextmanager
def ignore_calls() -> Iterator[None]:
    """Call no handler in this block: planning must have no side effects."""
    _Calls.are_ignored = True
    try:
        yield
        jax.effects_barrier()
    finally:
        _Calls.are_ignored = False


def receive(probe: Probe, mark_kind: str, mark: Any, *values: Any) -> None:
    """Pass a callback of a program to its handler, or to the current watcher.

    Nothing is raised: an exception that leaves a callback makes JAX end the program.
    """
    try:
        # Copied: an array of the callback would keep the memory of the device alive.
        arrays = tuple(np.array(v) for v in values)
        watcher = None if probe.kind == "call" else current()
        if watcher is None and probe.handler is not None:
            if not _Calls.are_ignored:
                probe.handler(*arrays)
        elif watcher is not None:
            mark = None if mark is None else np.array(mark)
            result = ProbeResult(probe, mark_kind, mark, arrays)
            columns = result.columns(probe.name)
            watcher.ingest_callback(probe.kind, probe.name, columns)
    except KeyboardInterrupt:
        # In a thread, since it waits until the main thread has left JAX. Ctrl-C while
        # XLA itself computes is not seen here.
        threading.Thread(
            target=_send_interrupt, name="frugax Ctrl-C", daemon=True
        ).start()
    except BaseException as e:
        _say_once(probe.name, error_text(e))


@functools.lru_cache(maxsize=100)
def _say_once(name: str, error: str) -> None:
    write_message(f"{name!r} is not recorded: {error}.")


def _send_interrupt() -> None:
    deadline = time.monotonic() + _MAX_DEFER_S
    while _is_in_jax() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
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
