"""Evidence about parent sets that needs no trained weights, in NumPy.

`moments` reduces a table to sufficient statistics of fixed size; `compute_evidence`
turns them into exact order-averaged posteriors of parent sets and features of pairs.
"""

from ._moments import BASIS, moments
from ._pair_features import PAIR_FEATURES, Evidence, compute_evidence
from ._parent_sets import (
    NEVER,
    log_scores,
    log_sum_exp,
    order_posterior,
    other_variables,
    set_members,
    set_membership,
    to_parent_child,
)

__all__ = [
    "BASIS",
    "NEVER",
    "PAIR_FEATURES",
    "Evidence",
    "compute_evidence",
    "log_scores",
    "log_sum_exp",
    "moments",
    "order_posterior",
    "other_variables",
    "set_members",
    "set_membership",
    "to_parent_child",
]
