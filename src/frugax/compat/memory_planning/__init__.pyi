from ._graph_analysis import (
    CapturedGraph as CapturedGraph,
    FrontierSummary as FrontierSummary,
    GraphAnalysis as GraphAnalysis,
    analyze_graph as analyze_graph,
    capture_graph_jaxpr as capture_graph_jaxpr,
    summarize_frontier as summarize_frontier,
)
from ._height_compressed import (
    CheckpointPlan as CheckpointPlan,
    HeightCompressedExecutor as HeightCompressedExecutor,
    HeightCompressedGrad as HeightCompressedGrad,
    height_compressed_grad as height_compressed_grad,
)
