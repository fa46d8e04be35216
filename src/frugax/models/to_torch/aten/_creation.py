"""Convert torch's operations that make new arrays for `from_torch`."""

from typing import Any

import numpy as np

from ._conversions import CONVERSIONS, aten, register, shape_of


@register("zeros_like", "ones_like", "full_like")
def _zeros_like(x: Any, **_: Any) -> Any:
    return np.zeros(shape_of(x), np.float32)


CONVERSIONS[aten.ones_like.default] = lambda x, **_: np.ones(shape_of(x), np.float32)
CONVERSIONS[aten.full_like.default] = lambda x, value, **_: np.full(
    shape_of(x), value, np.float32
)
CONVERSIONS[aten.new_zeros.default] = lambda x, size, **_: np.zeros(size, np.float32)
CONVERSIONS[aten.new_ones.default] = lambda x, size, **_: np.ones(size, np.float32)
CONVERSIONS[aten.new_full.default] = lambda x, size, value, **_: np.full(
    size, value, np.float32
)


@register("_assert_tensor_metadata", "sym_constrain_range_for_size")
def _nothing(*_: Any, **__: Any) -> None:
    return None
