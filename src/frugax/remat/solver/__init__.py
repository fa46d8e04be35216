"""Choose the parts of a loss to recompute, by a cost model of bytes and flops.

Nothing is compiled here. Start at `list_candidates`, which lists plans of ever smaller
modelled peak.
"""

from ._batch_choices import find_batch as find_batch
from ._candidates import (
    Candidate as Candidate,
    NamedCandidate as NamedCandidate,
    PlanParts as PlanParts,
    build_parts as build_parts,
    build_segments as build_segments,
    check_block_size as check_block_size,
    describe_operations as describe_operations,
    list_candidates as list_candidates,
    list_chunked as list_chunked,
    list_in_host_memory as list_in_host_memory,
    list_in_rows as list_in_rows,
    list_named as list_named,
    list_named_in_rows as list_named_in_rows,
    reads_late as reads_late,
)
from ._chain_dp import (
    DraftPlan as DraftPlan,
    draft_plans as draft_plans,
    model_peak as model_peak,
)
from ._loop_choices import (
    LoopChoices as LoopChoices,
    list_loop_choices as list_loop_choices,
)
from ._repeated_blocks import find_blocks as find_blocks
from ._residuals import Residuals as Residuals, find_residuals as find_residuals
from ._segment_costs import SegmentCost as SegmentCost, SegmentCosts as SegmentCosts
