"""Trellis-coded quantisation, entropy coded lane by lane with rANS.

`quantise` finds the integers, `encode` writes them as blocks, `parse` and
`decode_blocks` read the blocks back.
"""

from ._decode import (
    ParsedBlock,
    decode,
    decode_blocks,
    decode_levels,
    group_blocks,
    parse,
)
from ._encode import count_coded_bits, encode, estimate_side_bytes
from ._quantise import (
    MAX_FAR_LEVEL,
    LaneLayout,
    PathProblem,
    TrellisInput,
    TrellisLevels,
    classify_runs,
    quantise,
    residues,
    sum_run_squares,
    viterbi,
)

__all__ = [
    "MAX_FAR_LEVEL",
    "LaneLayout",
    "ParsedBlock",
    "PathProblem",
    "TrellisInput",
    "TrellisLevels",
    "classify_runs",
    "count_coded_bits",
    "decode",
    "decode_blocks",
    "decode_levels",
    "encode",
    "estimate_side_bytes",
    "group_blocks",
    "parse",
    "quantise",
    "residues",
    "sum_run_squares",
    "viterbi",
]
