"""Convert torch's scaled dot-product attention for `from_torch`."""

# ruff: noqa: FBT002 - the signatures are torch's own

import math
from typing import Any

import numpy as np

from frugax.models.graph import op

from ._conversions import is_bool, register, shape_of


@register("scaled_dot_product_attention")
def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: object = False,
    *,
    scale: float | None = None,
    enable_gqa: object = False,
) -> Any:
    reads, seen = shape_of(query)[-2], shape_of(key)[-2]
    if enable_gqa:
        times = shape_of(query)[-3] // shape_of(key)[-3]
        key, value = (op("repeat", repeats=times, axis=-3)(v) for v in (key, value))
    size = shape_of(query)[-1]
    scores = op("matmul")(query, op("swapaxes")(key)) * (scale or 1 / math.sqrt(size))
    if is_causal:
        mask = np.tril(np.ones((reads, seen), bool))
    if mask is not None:
        if is_bool(mask):
            scores = op("where")(mask, scores, -1e30)
        else:
            scores = op("add")(scores, mask)
    return op("matmul")(op("softmax")(scores), value)
