"""ATen's operations in JAX, by torch's names, for models that `from_torch` imported.

`evaluate` computes one; `find_function` tells whether the table has it.
"""

# Importing them fills the table.
from . import _elementwise, _linalg, _nets, _reductions, _shapes  # noqa: F401
from ._table import FUNCTIONS, evaluate, fill_argument, find_function

__all__ = ["FUNCTIONS", "evaluate", "fill_argument", "find_function"]
