"""Names of the older memory-planning guide, on top of `frugax.remat`.

Start at `capture_graph_jaxpr` to read a program, and at `height_compressed_grad` for a
gradient that recomputes blocks. New code uses `frugax.remat.plan`. Guide:
docs/compat/memory_planning.md.
"""

from ._graph_analysis import (
    CapturedGraph,
    FrontierSummary,
    GraphAnalysis,
    analyze_graph,
    capture_graph_jaxpr,
    summarize_frontier,
)
from ._height_compressed import (
    CheckpointPlan,
    HeightCompressedExecutor,
    HeightCompressedGrad,
    height_compressed_grad,
)

__all__ = [
    "CapturedGraph",
    "CheckpointPlan",
    "FrontierSummary",
    "GraphAnalysis",
    "HeightCompressedExecutor",
    "HeightCompressedGrad",
    "analyze_graph",
    "capture_graph_jaxpr",
    "height_compressed_grad",
    "summarize_frontier",
]
