"""Evidence about parent sets that needs no trained weights, in NumPy.

`moments` reduces a table to sufficient statistics of fixed size; `evidence` turns them
into exact order-averaged posteriors of parent sets and features of variable pairs.
"""

from ._moments import BASIS, moments
from ._pair_features import PAIR_FEATURES, Evidence, evidence
from ._parent_sets import (
    NEVER,
    log_sum_exp,
    members,
    order_posterior,
    others,
    parents,
    scores,
    squared,
)

__all__ = [
    "BASIS",
    "NEVER",
    "PAIR_FEATURES",
    "Evidence",
    "evidence",
    "log_sum_exp",
    "members",
    "moments",
    "order_posterior",
    "others",
    "parents",
    "scores",
    "squared",
]
