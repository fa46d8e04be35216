"""Models on disk: descriptions as JSON, weights as safetensors, programs as StableHLO.

Start at `save`, and at `layer_to_dict` for a description alone. `models.load` reads a
saved model; it is one layer up because it compiles.
"""

from ._assign import (
    CompiledWeights,
    assign_weights,
    expected_weights,
    find_mismatches,
    weights_by_block,
)
from ._export import ExportedModel, export, load_exported
from ._from_dict import layer_from_dict
from ._safetensors import SafetensorsFile, read_safetensors, write_safetensors
from ._save import (
    CONSTANT_PREFIX,
    KEY_OPTIONS,
    MAX_JSON_BYTES,
    METADATA_KEY,
    VERSION,
    save,
)
from ._to_dict import layer_to_dict
from ._values import DTYPES, check_type, constant_from_json, require_fields

__all__ = [
    "CONSTANT_PREFIX",
    "DTYPES",
    "KEY_OPTIONS",
    "MAX_JSON_BYTES",
    "METADATA_KEY",
    "VERSION",
    "CompiledWeights",
    "ExportedModel",
    "SafetensorsFile",
    "assign_weights",
    "check_type",
    "constant_from_json",
    "expected_weights",
    "export",
    "find_mismatches",
    "layer_from_dict",
    "layer_to_dict",
    "load_exported",
    "read_safetensors",
    "require_fields",
    "save",
    "weights_by_block",
    "write_safetensors",
]
