"""Pass uncollected probe values to their receiver, from inside a host callback.

This code runs inside a callback of the program. Any exception that left it, even
`SystemExit` or `KeyboardInterrupt`, would end the program, so none does.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ._probe import Probe
from ._results import ProbeResult, to_value

Receiver: TypeAlias = Callable[[Probe, Any], None]

_receiver: Receiver | None = None
_errors = 0
_lock = threading.Lock()


def set_receiver(receiver: Receiver | None) -> Receiver | None:
    """Set the receiver of the values of probes that nobody collects."""
    # One receiver for the whole process: callbacks of JAX know no caller.
    global _receiver
    with _lock:
        before, _receiver = _receiver, receiver
    return before


def receiver_errors() -> int:
    """Return how many times the receiver raised; the program continued each time."""
    return _errors


def deliver_callback(probe: Probe, mark_kind: str, mark: Any, *values: Any) -> None:
    """Pass the values of a callback to the receiver; never raises."""
    global _errors
    # Read once: another thread may set it to None between the test and the call.
    receiver = _receiver
    if receiver is None:
        return
    # Copied: an array of the callback would keep the memory of the device alive.
    arrays = [np.array(v) for v in values]
    if mark is not None:
        mark = np.array(mark)
    try:
        receiver(probe, to_value(ProbeResult(probe, mark_kind, mark, arrays)))
    except BaseException:  # counted for the receipt
        with _lock:
            _errors += 1
