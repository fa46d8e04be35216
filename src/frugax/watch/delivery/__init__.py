"""Deliver records to sinks from separate threads, and count the lost ones.

A `SinkWorker` stands in front of each sink. Whatever the sink does, the program goes
on, memory stays below a cap, and `Losses` counts the lost records by reason.
"""

from ._error_text import error_text, write_message
from ._losses import Losses, Tally, Why
from ._sink_worker import SinkReport, SinkWorker, charge_bytes

__all__ = [
    "Losses",
    "SinkReport",
    "SinkWorker",
    "Tally",
    "Why",
    "charge_bytes",
    "error_text",
    "write_message",
]
