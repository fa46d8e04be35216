"""Search for the codec and step of every tensor that meet a `SizeBudget`."""

from ._choose import choose, describe_best_size
from ._draft import Draft, EncodeRequest, encode_all, limit_bytes, make_draft
from ._error_weights import error_weights, sensitivity_of
from ._layered import LayeredSource
from ._plan import CompressPlan, TensorPlan, make_plan
from ._source import Source

__all__ = [
    "CompressPlan",
    "Draft",
    "EncodeRequest",
    "LayeredSource",
    "Source",
    "TensorPlan",
    "choose",
    "describe_best_size",
    "encode_all",
    "error_weights",
    "limit_bytes",
    "make_draft",
    "make_plan",
    "sensitivity_of",
]
