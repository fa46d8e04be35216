"""The codecs: integers times a step (`grid`) and exact byte planes (`lossless`).

The other names cut whole arrays into chunks for these two.
"""

from ._blocks import (
    BLOCK as BLOCK,
    CodedBlocks as CodedBlocks,
    RowScaling as RowScaling,
    encode_grid as encode_grid,
    numbers_per_chunk as numbers_per_chunk,
    row_length as row_length,
    split_chunks as split_chunks,
)
from ._channels import (
    ChannelScaling as ChannelScaling,
)
from ._zstd import (
    compress_frame as compress_frame,
    decompress_frame as decompress_frame,
)
from .grid import (
    Form as Form,
    find_form as find_form,
)
from .steps import (
    MAX_LEVEL as MAX_LEVEL,
    MAX_STEP as MAX_STEP,
    MIN_STEP as MIN_STEP,
    Step as Step,
    compute_type as compute_type,
    step_below as step_below,
    to_levels as to_levels,
    to_values as to_values,
)
