"""Evidence about parent sets that needs no trained weights, in NumPy.

`moments` reduces a table to sufficient statistics of fixed size; `compute_evidence`
turns them into exact order-averaged posteriors of parent sets and features of pairs.
"""

from ._moments import moments
from ._pair_features import (
    PAIR_FEATURES,
    Evidence,
    compute_evidence,
    exclude_two_cycles,
    marginal_edges,
)
from ._parent_sets import (
    NEVER,
    log_scores,
    order_posterior,
    other_variables,
    set_members,
    set_membership,
)

__all__ = [
    "NEVER",
    "PAIR_FEATURES",
    "Evidence",
    "compute_evidence",
    "exclude_two_cycles",
    "log_scores",
    "marginal_edges",
    "moments",
    "order_posterior",
    "other_variables",
    "set_members",
    "set_membership",
]
