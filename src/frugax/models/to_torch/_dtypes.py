"""The torch implementation of dtype casts and promotion, for the bodies of ops."""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from frugax.models.ops import as_dtype, int_dtype, promote, result_dtype

Array = Any  # a torch.Tensor or a Python number

TO_TORCH: dict[np.dtype, torch.dtype] = {
    as_dtype(name): getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64"),
        *("int8", "int16", "int32", "int64"),
        *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    )
}
TO_NUMPY = {t: n for n, t in TO_TORCH.items()}
# JAX without 64-bit numbers narrows in this way. Doing the same here keeps the dtypes
# of a model equal on both libraries.
_NARROW = {
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}


class Dtypes:
    """The dtype methods of the namespace.

    Attributes:
        float_dtype: dtype of a Python float, and the default of new tensors.
        device: where new tensors are made; torch's default if None.
    """

    float_dtype: np.dtype
    device: Any
    array_class = torch.Tensor

    as_dtype = staticmethod(as_dtype)
    promote = promote

    @property
    def int_dtype(self) -> np.dtype:
        """The dtype of indices and counts: as wide as the numbers of the backend."""
        return int_dtype(self.float_dtype)

    def dtype_of(self, x: Array) -> np.dtype:
        """Return a tensor's dtype by NumPy's name, or the one that a number becomes."""
        if type(x) in (bool, int, float):
            return result_dtype(type(x), float_dtype=self.float_dtype)
        return TO_NUMPY[x.dtype]

    def asarray(self, value: Any, dtype: Any = None) -> torch.Tensor:
        """A tensor of numbers, in `dtype` if given.

        NumPy arrays of 64 bits become 32 bits wide unless `float_dtype` is float64, as
        JAX has it.
        """
        if isinstance(value, torch.Tensor):
            return value if dtype is None else self.cast(value, dtype)
        if type(value) in (bool, int, float):
            wanted = self.dtype_of(value) if dtype is None else as_dtype(dtype)
            return torch.scalar_tensor(
                value, dtype=TO_TORCH[wanted], device=self.device
            )
        array = np.asarray(value)
        wanted = self._width(array.dtype) if dtype is None else as_dtype(dtype)
        # torch warns about arrays that are not writeable and cannot share them, so
        # those are copied. copy=None copies only where the dtype requires it.
        array = np.array(array, wanted, copy=not array.flags.writeable or None)
        if wanted == ml_dtypes.bfloat16:  # torch reads it bit by bit only
            half = torch.as_tensor(array.view(np.int16), device=self.device)
            return half.view(torch.bfloat16)
        return torch.as_tensor(array, device=self.device)

    def _width(self, dtype: np.dtype) -> np.dtype:
        if self.float_dtype == np.float64:
            return dtype
        if dtype == np.float64:
            return np.dtype(np.float32)
        return _NARROW.get(dtype, dtype)

    def cast(self, x: Array, dtype: Any) -> torch.Tensor:
        """The same values in another dtype."""
        if not isinstance(x, torch.Tensor):
            return self.asarray(x, dtype)
        # `to` returns the tensor itself if the dtype is the same.
        return x.to(TO_TORCH[as_dtype(dtype)])

    def new(self, dtype: Any, like: Any) -> dict[str, Any]:
        """Dtype and device of a new tensor: those of `like`, or the namespace's."""
        # Bodies of ops pass `like`, so helper tensors follow the data, also to meta.
        device = like.device if isinstance(like, torch.Tensor) else self.device
        return {"dtype": TO_TORCH[as_dtype(dtype)], "device": device}
