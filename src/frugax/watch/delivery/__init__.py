"""Deliver records to sinks from separate threads, and count the lost ones.

A `SinkWorker` stands in front of each sink. Whatever the sink does, the program goes
on, memory stays below a cap, and `Losses` counts the lost records by reason.
"""

from ._callback_stats import CallbackStats, CallbackTotals, callback_stats
from ._event_queue import EventQueue, charge_bytes
from ._interrupts import defer_interrupt
from ._losses import Losses, Tally, Why
from ._runner import CallSkipped, Outcome, Runner, error_text, run_inline
from ._sink_worker import SinkReport, SinkWorker

__all__ = [
    "CallSkipped",
    "CallbackStats",
    "CallbackTotals",
    "EventQueue",
    "Losses",
    "Outcome",
    "Runner",
    "SinkReport",
    "SinkWorker",
    "Tally",
    "Why",
    "callback_stats",
    "charge_bytes",
    "defer_interrupt",
    "error_text",
    "run_inline",
]
