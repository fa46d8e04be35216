"""Training on several devices and in several processes, on JAX's own engine.

Start at `initialize` and `Layout`; `frugax.fit.search` chooses a layout for a memory
budget per device, `audit` shows where arrays lie, `launch` starts processes on this
machine, `kubernetes_manifest` and `slurm_script` write what starts them on a cluster.
Guide: docs/distributed.md.
"""

from ..processes import EXIT_PEER_LOST, Layout, LayoutKind, Watchdog
from ._audit import ArrayPlacement, ShardingAudit, audit
from ._initialize import initialize, is_initialized
from ._launch import launch
from ._manifest import kubernetes_manifest, slurm_script

__all__ = [
    "EXIT_PEER_LOST",
    "ArrayPlacement",
    "Layout",
    "LayoutKind",
    "ShardingAudit",
    "Watchdog",
    "audit",
    "initialize",
    "is_initialized",
    "kubernetes_manifest",
    "launch",
    "slurm_script",
]
