"""Choose the parts of a loss to recompute by a model of bytes and flops.

Nothing is compiled here. Start at `list_candidates`, which lists plans of ever smaller
modelled peak.
"""

from ._candidates import (
    Candidate,
    build_segments,
    check_block_size,
    describe_operations,
    list_candidates,
)
from ._chain_dp import DraftPlan, draft_plans, model_peak
from ._loop_choices import LoopChoices, list_loop_choices
from ._residuals import Residuals, find_residuals
from ._segment_costs import SegmentCost, SegmentCosts

__all__ = [
    "Candidate",
    "DraftPlan",
    "LoopChoices",
    "Residuals",
    "SegmentCost",
    "SegmentCosts",
    "build_segments",
    "check_block_size",
    "describe_operations",
    "draft_plans",
    "find_residuals",
    "list_candidates",
    "list_loop_choices",
    "model_peak",
]
