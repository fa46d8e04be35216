"""Converters for `from_torch`: operations of torch's ATen library as connections."""

from . import (
    _activations,
    _attention,
    _creation,
    _elementwise,
    _indexing,
    _norms,
    _recurrent,
    _reductions,
    _shapes,
    _windows,
)
from ._conversions import CONVERSIONS, TRACED, note

__all__ = [
    "CONVERSIONS",
    "TRACED",
    "_activations",
    "_attention",
    "_creation",
    "_elementwise",
    "_indexing",
    "_norms",
    "_recurrent",
    "_reductions",
    "_shapes",
    "_windows",
    "note",
]
