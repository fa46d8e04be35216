"""Integers times a step, entropy coded lane by lane with rANS.

`quantise` finds the integers, `encode` writes them as blocks, `parse` and
`decode_blocks` read the blocks back.
"""

from ._decode import (
    ParsedBlock as ParsedBlock,
    decode_blocks as decode_blocks,
    decode_integers as decode_integers,
    group_blocks as group_blocks,
    parse as parse,
)
from ._encode import (
    STATE_BYTES as STATE_BYTES,
    count_class_bytes as count_class_bytes,
    count_coded_bits as count_coded_bits,
    encode as encode,
    estimate_side_bytes as estimate_side_bytes,
    estimate_uniform_bytes as estimate_uniform_bytes,
)
from ._feedback import (
    Feedback as Feedback,
)
from ._form import (
    Form as Form,
    find_form as find_form,
)
from ._quantise import (
    MAX_FAR_LEVEL as MAX_FAR_LEVEL,
    MAX_ROW_LANE as MAX_ROW_LANE,
    GridInput as GridInput,
    GridLevels as GridLevels,
    LaneLayout as LaneLayout,
    PathProblem as PathProblem,
    classify_runs as classify_runs,
    quantise as quantise,
    residues as residues,
    sum_run_squares as sum_run_squares,
    transpose as transpose,
    viterbi as viterbi,
)
from ._scales import (
    nearest_exponents as nearest_exponents,
    pack_exponents as pack_exponents,
    run_scales as run_scales,
    run_units as run_units,
    scale_runs as scale_runs,
)
