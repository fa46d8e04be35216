"""Run as one of several processes: layouts, agreement, the watchdog and the exit."""

from ._collectives import (
    agree_on_min,
    gather_to_host,
    is_preempted,
    put,
    run_on_first,
)
from ._exit import EXIT_PEER_LOST, exit_now, is_peer_lost, join_peers
from ._layout import Layout, LayoutKind
from ._watchdog import Watchdog, pause_watchdogs

__all__ = [
    "EXIT_PEER_LOST",
    "Layout",
    "LayoutKind",
    "Watchdog",
    "agree_on_min",
    "exit_now",
    "gather_to_host",
    "is_peer_lost",
    "is_preempted",
    "join_peers",
    "pause_watchdogs",
    "put",
    "run_on_first",
]
