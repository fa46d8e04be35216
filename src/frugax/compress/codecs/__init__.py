"""The codecs: uniform grids, trellis-coded grids, bit planes and lossless byte planes.

`lossless`, `planes`, `rans`, `uniform` and `trellis` are the codecs as modules; the
other names cut whole arrays into chunks for them.
"""

from . import (
    _lossless as lossless,
    _planes as planes,
    _rans as rans,
    _uniform as uniform,
    trellis,
)
from ._blocks import (
    BLOCK,
    CodedBlocks,
    count_lossless_bytes,
    encode_lossless,
    encode_trellis,
    encode_uniform,
    numbers_per_chunk,
    row_length,
    split_for_trellis,
)
from ._uniform import (
    MAX_STEP,
    MIN_STEP,
    Step,
    compute_type,
    scale_levels,
    step_below,
    to_levels,
    to_values,
)
from ._zstd import decompress_frame

__all__ = [
    "BLOCK",
    "MAX_STEP",
    "MIN_STEP",
    "CodedBlocks",
    "Step",
    "compute_type",
    "count_lossless_bytes",
    "decompress_frame",
    "encode_lossless",
    "encode_trellis",
    "encode_uniform",
    "lossless",
    "numbers_per_chunk",
    "planes",
    "rans",
    "row_length",
    "scale_levels",
    "split_for_trellis",
    "step_below",
    "to_levels",
    "to_values",
    "trellis",
    "uniform",
]
