from ._collectives import (
    agree_on_min as agree_on_min,
    broadcast_text as broadcast_text,
    gather as gather,
    is_preempted as is_preempted,
    run_on_first as run_on_first,
    shard_global as shard_global,
)
from ._layout import Layout as Layout, LayoutKind as LayoutKind
from ._peers import (
    EXIT_PEER_LOST as EXIT_PEER_LOST,
    Watchdog as Watchdog,
    exit_now as exit_now,
    is_peer_lost as is_peer_lost,
    join_peers as join_peers,
    pause_watchdogs as pause_watchdogs,
)
