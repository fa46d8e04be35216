"""Weights in memory: named arrays of any library, mapped files, measured errors."""

from ._error import (
    Distortion as Distortion,
    relative_error as relative_error,
    round_up as round_up,
)
from ._leaves import (
    DTYPE_NAMES as DTYPE_NAMES,
    QUANTISABLE as QUANTISABLE,
    check_not_input as check_not_input,
    dtype_from_name as dtype_from_name,
    named_arrays as named_arrays,
    to_library as to_library,
    to_stored as to_stored,
    unwrap_modules as unwrap_modules,
)
from ._mapped import (
    MappedFile as MappedFile,
    map_file as map_file,
    release as release,
    release_range as release_range,
)
from ._packed import (
    PackedArray as PackedArray,
    pack_nibbles as pack_nibbles,
    register_packed as register_packed,
)
from ._safetensors import (
    read_metadata as read_metadata,
    read_safetensors as read_safetensors,
    write_arrays as write_arrays,
    write_safetensors as write_safetensors,
)
from ._tensor import (
    Tensor as Tensor,
    warn_of_not_finite as warn_of_not_finite,
)
from ._ties import (
    find_ties as find_ties,
)
