"""Weights in memory: named arrays of any library, mapped files, measured errors."""

from ._error import Distortion, relative_error, round_up
from ._leaves import (
    DTYPE_NAMES,
    QUANTISABLE,
    check_not_input,
    dtype_from_name,
    named_arrays,
    unwrap_modules,
)
from ._mapped import MappedFile, map_file, release, release_range

__all__ = [
    "DTYPE_NAMES",
    "QUANTISABLE",
    "Distortion",
    "MappedFile",
    "check_not_input",
    "dtype_from_name",
    "map_file",
    "named_arrays",
    "relative_error",
    "release",
    "release_range",
    "round_up",
    "unwrap_modules",
]
