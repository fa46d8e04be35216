"""The op table: every operation once, for JAX and torch alike.

Start at `OPS`; `op` adds an op, `find` looks one up. `result_dtype` is the rule for the
dtype of a result. Shapes in annotations are those of arrays of either library.
"""

from frugax.models.dtypes import as_dtype

# Importing them fills the table.
from . import (  # noqa: F401
    _activations,
    _aten,
    _attention,
    _elementwise,
    _embeddings,
    _experts,
    _indexing,
    _linalg,
    _losses,
    _metrics,
    _norms,
    _random,
    _recurrent,
    _reductions,
    _shapes,
    _windows,
)
from ._promote import (
    FLOAT_DTYPE,
    drawing_dtype,
    int_dtype,
    is_floating,
    largest_below,
    promote,
    result_dtype,
    sum_dtype,
)
from ._reductions import safe_sqrt
from ._settings import (
    Count,
    Epsilon,
    Fraction,
    Natural,
    NonNegative,
    Padding,
    Positive,
    Sizes,
    padding_pairs,
    per_axis,
)
from ._table import ALIASES, OPS, REQUIRED, Op, custom_op, find, op, op_from_function

__all__ = [
    "ALIASES",
    "FLOAT_DTYPE",
    "OPS",
    "REQUIRED",
    "Count",
    "Epsilon",
    "Fraction",
    "Natural",
    "NonNegative",
    "Op",
    "Padding",
    "Positive",
    "Sizes",
    "as_dtype",
    "custom_op",
    "drawing_dtype",
    "find",
    "int_dtype",
    "is_floating",
    "largest_below",
    "op",
    "op_from_function",
    "padding_pairs",
    "per_axis",
    "promote",
    "result_dtype",
    "safe_sqrt",
    "sum_dtype",
]
