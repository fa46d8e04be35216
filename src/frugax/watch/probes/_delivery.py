"""Where the values of a probe go when nobody collects them: one safe function.

It runs inside the program's callback. Whatever is raised in it, `SystemExit` and
`KeyboardInterrupt` too, would end the program, so nothing leaves it.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ._made import Made, value_of
from ._probe import Probe

Receiver: TypeAlias = Callable[[Probe, Any], None]

_receiver: Receiver | None = None
_faults = 0
_lock = threading.Lock()


def on_delivery(receiver: Receiver | None) -> Receiver | None:
    """Set who receives the values of probes that nobody collects.

    Args:
        receiver: called with the probe and its value as NumPy arrays of its own, in
            the form in which `collect` gives records. None: nobody.

    Returns:
        The one that was set before.
    """
    global _receiver
    with _lock:
        before, _receiver = _receiver, receiver
    return before


def delivery_faults() -> int:
    """How many times the receiver raised; the program went on each time."""
    return _faults


def hand_over(probe: Probe, value: Any) -> None:
    """Give the receiver a value that has left as an output; never raises.

    Args:
        probe: which.
        value: NumPy arrays, in the form in which `collect` gives records.
    """
    global _faults
    receiver = _receiver
    if receiver is None:
        return
    try:
        receiver(probe, value)
    except BaseException:  # counted, and the receipt shows it
        with _lock:
            _faults += 1


def deliver(probe: Probe, meaning: str, mark: Any, *values: Any) -> None:
    """Give the values of a callback to the receiver; never raises."""
    if _receiver is None:
        return
    # Copies: what is kept of the callback's own arrays keeps device memory alive.
    arrays = [np.array(v) for v in values]
    made = Made(probe, meaning, None if mark is None else np.array(mark), arrays)
    hand_over(probe, value_of(made))
