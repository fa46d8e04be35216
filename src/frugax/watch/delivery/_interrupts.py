"""Send Ctrl-C to the main thread again, once it has left a program's host callbacks."""

import signal
import sys
import threading
import time

# Pause between two looks at whether the main thread has left the program's callbacks:
# short for a person who waits, and cheap (a look walks one thread's frames).
_POLL_S = 0.005
# A training loop may be inside JAX nearly all the time. After this time the interrupt
# is delivered anyway: JAX may then report an internal error, but the loop stops.
_MAX_DEFER_S = 2.0


def defer_interrupt() -> None:
    """Send a Ctrl-C that came in a callback again when the main thread has left JAX.

    An exception that leaves a callback makes JAX end the whole program with an internal
    error. Ctrl-C while XLA itself computes is not seen here.
    """
    threading.Thread(target=_send_later, name="frugax Ctrl-C", daemon=True).start()


def _send_later() -> None:
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
