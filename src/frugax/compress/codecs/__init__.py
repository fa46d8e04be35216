"""The codecs: uniform grids, trellis-coded grids and lossless byte planes.

`lossless`, `rans`, `uniform` and `trellis` are the codecs as modules; the other names
cut whole arrays into chunks for them.
"""

from ._blocks import (
    BLOCK as BLOCK,
    CodedBlocks as CodedBlocks,
    LosslessLength as LosslessLength,
    RowScaling as RowScaling,
    encode_lossless as encode_lossless,
    encode_trellis as encode_trellis,
    encode_uniform as encode_uniform,
    estimate_lossless_bytes as estimate_lossless_bytes,
    numbers_per_chunk as numbers_per_chunk,
    row_length as row_length,
    split_for_trellis as split_for_trellis,
)
from ._channels import (
    ChannelScaling as ChannelScaling,
)
from ._zstd import (
    compress_frame as compress_frame,
    decompress_frame as decompress_frame,
)
from .uniform import (
    MAX_LEVEL as MAX_LEVEL,
    MAX_STEP as MAX_STEP,
    MIN_STEP as MIN_STEP,
    Step as Step,
    compute_type as compute_type,
    largest_finite as largest_finite,
    scale_levels as scale_levels,
    step_below as step_below,
    to_levels as to_levels,
    to_values as to_values,
)
