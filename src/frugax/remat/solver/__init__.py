"""Choose the parts of a loss to recompute, by a cost model of bytes and flops.

Nothing is compiled here. Start at `list_candidates`, which lists plans of ever smaller
modelled peak.
"""

from ._batch_choices import find_batch as find_batch
from ._candidate import (
    Candidate as Candidate,
    build_parts as build_parts,
    describe_operations as describe_operations,
)
from ._candidates import (
    Stage as Stage,
    list_candidates as list_candidates,
    list_named as list_named,
    reads_late as reads_late,
)
from ._chain_dp import check_block_size as check_block_size, draft_plans as draft_plans
from ._loop_choices import list_loop_choices as list_loop_choices
from ._repeated_blocks import find_blocks as find_blocks
from ._residuals import find_residuals as find_residuals
