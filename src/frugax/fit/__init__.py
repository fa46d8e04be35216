"""Plan a training step for devices that need not be here: does it fit, at what price.

Start at `plan` for one target, or `compare` for several; `find_largest_batch` and
`search` vary the batch and the layout. Guide: docs/targets.md.
"""

from ._batch import BatchAnswer, find_largest_batch
from ._donation import describe_donation, find_donatable
from ._picture import draw_memory
from ._plan import (
    DEFAULT_BUDGET,
    Budget,
    FitPlan,
    FitRow,
    apply,
    compare,
    layout_kinds,
    plan,
    price_of,
    show_why,
)
from ._search import cost, search
from ._workload import Workload, accumulate

__all__ = [
    "DEFAULT_BUDGET",
    "BatchAnswer",
    "Budget",
    "FitPlan",
    "FitRow",
    "Workload",
    "accumulate",
    "apply",
    "compare",
    "cost",
    "describe_donation",
    "draw_memory",
    "find_donatable",
    "find_largest_batch",
    "layout_kinds",
    "plan",
    "price_of",
    "search",
    "show_why",
]
