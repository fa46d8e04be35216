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
from ._table import OPS, REQUIRED, Op, describe, find, op, own_op

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
    "describe",
    "find",
    "is_floating",
    "op",
    "own_op",
    "result_dtype",
    "sum_dtype",
]
