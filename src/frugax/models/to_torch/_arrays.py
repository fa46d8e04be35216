"""The array functions of torch, for bodies of ops: dtypes, arithmetic, new tensors."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

from frugax.models.ops import (
    FLOAT_DTYPE,
    as_dtype,
    drawing_dtype,
    int_dtype,
    largest_below,
    promote,
    result_dtype,
)

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


def _tensors(left: Array, right: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as tensors: a Python number takes the other's dtype and device."""
    # With the other's dtype torch's own promotion has nothing left to decide.
    if not isinstance(left, torch.Tensor):
        left = torch.scalar_tensor(left, dtype=right.dtype, device=right.device)
    elif not isinstance(right, torch.Tensor):
        right = torch.scalar_tensor(right, dtype=left.dtype, device=left.device)
    return left, right


def _binary(
    function: Callable[..., Any], *, takes_number: bool = True
) -> Callable[..., Any]:
    """The method that runs `function` on two tensors, or a tensor and a number."""

    def method(self: "Arrays", left: Array, right: Array) -> torch.Tensor:
        # A number on the right costs less than a tensor made for it. On the left some
        # of torch's functions refuse one.
        if takes_number and isinstance(left, torch.Tensor):
            return function(left, right)
        return function(*_tensors(left, right))

    method.__doc__ = function.__doc__
    return method


class Arrays:
    """Dtypes, elementwise functions, products and new tensors.

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

    # --- elementwise ------------------------------------------------------------------

    add = _binary(torch.add)
    multiply = _binary(torch.multiply)
    divide = _binary(torch.true_divide)
    arctan2 = _binary(torch.atan2, takes_number=False)
    maximum = _binary(torch.maximum, takes_number=False)
    minimum = _binary(torch.minimum, takes_number=False)
    subtract = _binary(torch.subtract)
    logaddexp = _binary(torch.logaddexp, takes_number=False)

    def power(self, left: Array, right: Array) -> torch.Tensor:
        """`left` to the power of `right`."""
        if isinstance(right, int) and not left.dtype.is_floating_point and right < 0:
            left, right = _tensors(left, right)  # torch refuses the number only
        return torch.pow(left, right)

    def floor_divide(self, left: Array, right: Array) -> torch.Tensor:
        """`left` / `right`, rounded down; integers by 0 give 0, as NumPy does."""
        down = lambda x, y: torch.div(x, y, rounding_mode="floor")
        return self._by_divisor(down, left, right)

    def remainder(self, left: Array, right: Array) -> torch.Tensor:
        """Remainder of floor_divide, with the sign of `right`; integers by 0 give 0."""
        return self._by_divisor(torch.remainder, left, right)

    def _by_divisor(
        self, f: Callable[..., Any], left: Array, right: Array
    ) -> torch.Tensor:
        left, right = _tensors(left, right)
        if right.dtype.is_floating_point:
            return f(left, right)
        # torch raises for an integer division by 0 on CPU, so the divisor is replaced
        # first and the quotient afterwards.
        zero = right == 0
        return f(left, torch.where(zero, 1, right)).masked_fill(zero, 0)

    def sign(self, x: Array) -> torch.Tensor:
        """-1, 0 or 1; NaN for NaN, which torch.sign takes for 0."""
        signs = torch.sign(x)
        if x.dtype.is_floating_point:
            return torch.where(x.isnan(), x, signs)  # torch's sign of NaN is 0
        return signs

    def round(self, x: Array, decimals: int = 0) -> torch.Tensor:
        """Halves to the even neighbour."""
        if decimals:
            return torch.round(x, decimals=decimals)
        return torch.round(x)

    def clip(self, x: Array, low: Any = None, high: Any = None) -> torch.Tensor:
        """`x` within the bounds; the gradient is 0 at and beyond them."""
        if not x.dtype.is_floating_point:
            return torch.clamp(x, low, high)
        # As torch.clamp, whose gradient at a bound is 1.
        return F.hardtanh(
            x,
            -math.inf if low is None else low,
            math.inf if high is None else high,
        )

    def where(self, condition: Array, left: Array, right: Array) -> torch.Tensor:
        """`left` where the condition holds, `right` elsewhere."""
        if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
            left, right = _tensors(left, right)
        return torch.where(condition, left, right)

    equal = _binary(torch.eq)
    not_equal = _binary(torch.ne)
    less = _binary(torch.lt)
    less_equal = _binary(torch.le)
    greater = _binary(torch.gt)
    greater_equal = _binary(torch.ge)
    logical_and = _binary(torch.logical_and, takes_number=False)
    logical_or = _binary(torch.logical_or, takes_number=False)
    logical_xor = _binary(torch.logical_xor, takes_number=False)
    bitwise_and = _binary(torch.bitwise_and)
    bitwise_or = _binary(torch.bitwise_or)
    bitwise_xor = _binary(torch.bitwise_xor)
    left_shift = _binary(torch.bitwise_left_shift)
    right_shift = _binary(torch.bitwise_right_shift)

    log_sigmoid = staticmethod(F.logsigmoid)

    def celu(self, x: Array, alpha: float = 1.0) -> torch.Tensor:
        """As elu; the gradient of F.celu has only float32's digits in float64."""
        return F.elu(x / alpha) * alpha

    def softplus(self, x: Array) -> torch.Tensor:
        """log(1 + exp(x)); F.softplus returns x above 20, too early in float64."""
        return torch.logaddexp(x, torch.zeros((), dtype=x.dtype, device=x.device))

    def gelu(self, x: Array, *, approximate: bool = False) -> torch.Tensor:
        """Exact by erf, or approximate by tanh."""
        return F.gelu(x, approximate="tanh" if approximate else "none")

    # --- products ---------------------------------------------------------------------

    def matmul(self, left: Array, right: Array) -> torch.Tensor:
        """Matrix product, stacked over leading axes."""
        if left.dtype == torch.bool:  # whether some path leads there; not in torch
            return torch.matmul(left.to(torch.int32), right.to(torch.int32)) != 0
        return torch.matmul(left, right)

    def tensordot(self, left: Array, right: Array, axes: Any = 2) -> torch.Tensor:
        """Sum of products over the given axes of both."""
        return torch.tensordot(left, right, dims=axes)

    def cholesky(self, x: Array) -> torch.Tensor:
        """Lower triangular factor of the symmetric part; NaN if not pos. definite."""
        # The _ex forms report failure in a tensor instead of raising, which would wait
        # for the GPU at every call.
        factor, info = torch.linalg.cholesky_ex((x + x.mT) / 2)
        return torch.where((info == 0)[..., None, None], factor, math.nan).tril()

    def solve(self, left: Array, right: Array) -> torch.Tensor:
        """The x with left x = right."""
        if right.ndim == 1:
            return self.solve(left, right[:, None])[..., 0]
        return torch.linalg.solve_ex(left, right)[0]

    def inverse(self, x: Array) -> torch.Tensor:
        """Inverse of square matrices."""
        return torch.linalg.inv_ex(x)[0]

    determinant = staticmethod(torch.linalg.det)

    # --- new tensors, and random draws ------------------------------------------------

    def zeros(self, shape: Any, dtype: Any = None, *, like: Any = None) -> torch.Tensor:
        """A tensor of zeros, on the device of `like`."""
        return torch.zeros(tuple(shape), **self.new(dtype or self.float_dtype, like))

    def ones(self, shape: Any, dtype: Any = None, *, like: Any = None) -> torch.Tensor:
        """A tensor of ones, on the device of `like`."""
        return torch.ones(tuple(shape), **self.new(dtype or self.float_dtype, like))

    def full(
        self, shape: Any, value: Any, dtype: Any = None, *, like: Any = None
    ) -> torch.Tensor:
        """A tensor of one value, on the device of `like`."""
        new = self.new(dtype or self.dtype_of(value), like)
        return torch.full(tuple(shape), value, **new)

    def arange(
        self,
        start: Any,
        stop: Any = None,
        step: Any = 1,
        dtype: Any = None,
        *,
        like: Any = None,
    ) -> torch.Tensor:
        """Evenly spaced numbers; `int_dtype` if all three are ints."""
        if stop is None:
            start, stop = 0, start
        if (stop - start) * step < 0:  # NumPy returns an empty array here, torch raises
            stop = start
        if dtype is None:
            floats = any(isinstance(v, float) for v in (start, stop, step))
            dtype = self.int_dtype
            if floats:
                dtype = self.float_dtype
        return torch.arange(start, stop, step, **self.new(dtype, like))

    def lengths(self, shape: Any) -> torch.Tensor:
        """An integer for each length."""
        return torch.tensor([int(n) for n in shape], **self.new(self.int_dtype, None))

    def eye(
        self, rows: Any, columns: Any = None, k: int = 0, dtype: Any = None
    ) -> torch.Tensor:
        """Ones on the k-th diagonal."""
        columns = rows if columns is None else columns
        # torch.eye knows only the main diagonal.
        i = torch.arange(rows, device=self.device)[:, None]
        j = torch.arange(columns, device=self.device)[None]
        return (j - i == k).to(TO_TORCH[as_dtype(dtype or self.float_dtype)])

    def _draw(self, key: Array, dtype: np.dtype) -> dict[str, Any]:
        """How torch draws from a key, which has no value where only shapes run."""
        new = self.new(dtype, key)
        if key.device.type == "meta":
            return new
        generator = torch.Generator(key.device).manual_seed(int(key))
        return {"generator": generator, **new}

    def random_uniform(
        self, key: Array, shape: Any, low: Any, high: Any, dtype: np.dtype
    ) -> torch.Tensor:
        """Uniform in [low, high)."""
        wide = drawing_dtype(dtype)
        drawn = low + (high - low) * torch.rand(shape, **self._draw(key, wide))
        if wide == dtype:
            return drawn
        most = float(largest_below(np.asarray(high, wide), dtype))
        return drawn.to(TO_TORCH[dtype]).clamp_max(most)

    def random_normal(self, key: Array, shape: Any, dtype: np.dtype) -> torch.Tensor:
        """Standard normal."""
        wide = drawing_dtype(dtype)
        return torch.randn(shape, **self._draw(key, wide)).to(TO_TORCH[dtype])

    def bernoulli(self, key: Array, p: float, shape: Any) -> torch.Tensor:
        """True with probability p."""
        return torch.rand(shape, **self._draw(key, FLOAT_DTYPE)) < p

    def random_integers(
        self, key: Array, shape: Any, low: int, high: int, dtype: np.dtype
    ) -> torch.Tensor:
        """Uniform integers in [low, high)."""
        return torch.randint(low, high, shape, **self._draw(key, dtype))

    def fold_in(self, key: Array, index: Any) -> torch.Tensor:
        """Derive a key for each number by the mixer of SplitMix64.

        Steele, Lea & Flood 2014, OOPSLA, with the constants of Stafford's variant 13.
        """
        if key.device.type == "meta":
            return key
        mask = 2**64 - 1
        z = (int(key) + (int(index) + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        seed = (z ^ (z >> 31)) >> 1  # 63 bits: a seed is a signed int64
        return torch.scalar_tensor(seed, dtype=torch.int64, device=key.device)

    def split_key(self, key: Array, count: int = 2) -> tuple[torch.Tensor, ...]:
        """New keys for an old one."""
        # Fold numbers that nobody else folds, so a split never meets a `fold_in`.
        return tuple(self.fold_in(key, 2**32 + i) for i in range(count))
