"""Models on disk: descriptions as JSON, weights as safetensors, programs as StableHLO.

Start at `save`, and at `layer_to_dict` for a description alone. `models.load` reads a
saved model; it is one layer up because it compiles.
"""

from ._assign import (
    assign_weights,
    expected_weights,
    find_mismatches,
    weights_by_block,
)
from ._export import ExportedModel, export, load_exported
from ._from_dict import layer_from_dict
from ._save import (
    CONSTANT_PREFIX,
    MAX_JSON_BYTES,
    METADATA_KEY,
    VERSION,
    save,
)
from ._to_dict import layer_to_dict
from ._values import (
    ArrayConstant,
    NumberConstant,
    constant_from_json,
)

__all__ = [
    "CONSTANT_PREFIX",
    "MAX_JSON_BYTES",
    "METADATA_KEY",
    "VERSION",
    "ArrayConstant",
    "ExportedModel",
    "NumberConstant",
    "assign_weights",
    "constant_from_json",
    "expected_weights",
    "export",
    "find_mismatches",
    "layer_from_dict",
    "layer_to_dict",
    "load_exported",
    "save",
    "weights_by_block",
]
