"""Records reach a sink from a thread of its own, or are counted as lost.

`Outlet` stands before each sink: whatever the sink does, the program goes on, memory
keeps to its cap, and `Losses` says what was lost and why.
"""

from ._callback_stats import CallbackStats, CallbackTotals, callback_stats
from ._circuit_breaker import CircuitBreaker, State
from ._host_handler import HostHandler
from ._interrupts import Interrupts
from ._losses import KINDS, Losses, Tally, Why
from ._outlet import Outlet, OutletReport
from ._queue import EventQueue, Waiting, charge
from ._runner import Outcome, Runner, error_text, outcome_of

__all__ = [
    "KINDS",
    "CallbackStats",
    "CallbackTotals",
    "CircuitBreaker",
    "EventQueue",
    "HostHandler",
    "Interrupts",
    "Losses",
    "Outcome",
    "Outlet",
    "OutletReport",
    "Runner",
    "State",
    "Tally",
    "Waiting",
    "Why",
    "callback_stats",
    "charge",
    "error_text",
    "outcome_of",
]
