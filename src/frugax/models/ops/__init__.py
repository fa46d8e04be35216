"""The op table: every operation once, for JAX and torch alike.

Start at `OPS`; `op` adds one, `find` looks one up. `result_dtype` is the one rule for
dtypes that meet.
"""

from . import (
    _activations,
    _attention,
    _convolutions,
    _elementwise,
    _embeddings,
    _indexing,
    _linalg,
    _losses,
    _metrics,
    _norms,
    _pooling,
    _random,
    _recurrent,
    _reductions,
    _shapes,
)
from ._promote import (
    FLOAT_DTYPE,
    INT_DTYPE,
    as_dtype,
    is_floating,
    result_dtype,
    sum_dtype,
)
from ._table import OPS, REQUIRED, Op, custom_op, find, op, op_from_function

__all__ = [
    "FLOAT_DTYPE",
    "INT_DTYPE",
    "OPS",
    "REQUIRED",
    "Op",
    "_activations",
    "_attention",
    "_convolutions",
    "_elementwise",
    "_embeddings",
    "_indexing",
    "_linalg",
    "_losses",
    "_metrics",
    "_norms",
    "_pooling",
    "_random",
    "_recurrent",
    "_reductions",
    "_shapes",
    "as_dtype",
    "custom_op",
    "find",
    "is_floating",
    "op",
    "op_from_function",
    "result_dtype",
    "sum_dtype",
]
