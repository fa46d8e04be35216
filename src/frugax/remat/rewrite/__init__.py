"""Run a loss and its gradients by a plan: segments recompute, loops are rewritten.

Start at `trace_loss`, which prepares a loss, and `build_value_and_grad`, which carries
a plan out. `rewrite_loops` changes the residuals that the bodies of `lax.scan` and
`lax.cond` save.
"""

from ._backward import build_value_and_grad, value_and_gradients
from ._gates import Gate, choose_gate
from ._graph import RematGraph, active_variables, trace_loss
from ._loops import loop_bodies, rewrite_loops

__all__ = [
    "Gate",
    "RematGraph",
    "active_variables",
    "build_value_and_grad",
    "choose_gate",
    "loop_bodies",
    "rewrite_loops",
    "trace_loss",
    "value_and_gradients",
]
