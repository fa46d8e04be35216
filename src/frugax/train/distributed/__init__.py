"""Training on several devices and in several processes, on JAX's own engine.

Start at `initialize` and `Layout`; `plan` chooses a layout for a memory budget per
device, `audit` shows what lies where, `launch` starts processes on this machine.
Guide: docs/distributed.md.
"""

from frugax.train._layout import Layout, LayoutKind
from frugax.train._leaving import EXIT_PEER_LOST
from frugax.train._watchdog import Watchdog

from ._audit import Audit, Leaf, audit
from ._initialize import initialize, is_initialized
from ._launch import launch
from ._plan import LayoutPlan, Tried, plan

__all__ = [
    "EXIT_PEER_LOST",
    "Audit",
    "Layout",
    "LayoutKind",
    "LayoutPlan",
    "Leaf",
    "Tried",
    "Watchdog",
    "audit",
    "initialize",
    "is_initialized",
    "launch",
    "plan",
]
