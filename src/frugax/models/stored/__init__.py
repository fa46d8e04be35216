"""Models on disk: descriptions as JSON, weights as safetensors, programs as StableHLO.

Start at `save`, and `to_plain` for a description alone. Reading a saved model is in
`models.load`, one floor up, because it compiles.
"""

from ._export import ExportedModel, export, load_exported
from ._fill import HasWeights, as_numpy, fill, problems_of, wanted
from ._from_plain import from_plain
from ._plain import to_plain
from ._plain_checks import check_fits, fields_of
from ._plain_values import DTYPES, read_constant
from ._safetensors import Tensors, read
from ._save import CONSTANT, ENTRY, KEYS, MAX_TEXT, VERSION, save

__all__ = [
    "CONSTANT",
    "DTYPES",
    "ENTRY",
    "KEYS",
    "MAX_TEXT",
    "VERSION",
    "ExportedModel",
    "HasWeights",
    "Tensors",
    "as_numpy",
    "check_fits",
    "export",
    "fields_of",
    "fill",
    "from_plain",
    "load_exported",
    "problems_of",
    "read",
    "read_constant",
    "save",
    "to_plain",
    "wanted",
]
