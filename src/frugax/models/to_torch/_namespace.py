"""The array namespace `xp` of torch: what the bodies of the op table are written over.

The same methods as the JAX namespace, with NumPy's rules: torch's own dtype rules, its
int64 indices, and its refusals (several axes, negative steps, empty arrays) end here.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

from frugax.models.ops import (
    FLOAT_DTYPE,
    INT_DTYPE,
    as_dtype,
    is_floating,
    result_dtype,
    sum_dtype,
)

from ._kernels import Kernels

Array = Any  # a torch.Tensor or a Python number
Axis = int | Sequence[int] | None

_TO_TORCH: dict[np.dtype, torch.dtype] = {
    as_dtype(name): getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64"),
        *("int8", "int16", "int32", "int64"),
        *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    )
}
_TO_NUMPY = {t: n for n, t in _TO_TORCH.items()}
_NARROW = {
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}


def _tensors(left: Array, right: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as tensors: a Python number takes the other's dtype and device."""
    if not isinstance(left, torch.Tensor):
        left = torch.scalar_tensor(left, dtype=right.dtype, device=right.device)
    elif not isinstance(right, torch.Tensor):
        right = torch.scalar_tensor(right, dtype=left.dtype, device=left.device)
    return left, right


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method that runs `function` on two tensors, or a tensor and a number."""

    def method(self: "TorchNamespace", left: Array, right: Array) -> torch.Tensor:
        return function(*_tensors(left, right))

    method.__doc__ = function.__doc__
    return method


def _axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """The axes as a tuple of numbers from 0; all for None."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(a % ndim if ndim else a for a in _as_tuple(axis))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


class TorchNamespace(Kernels):
    """The operations of torch, as bodies of ops see them.

    Attributes:
        float_dtype: what a float is when nothing else says so.
        device: where new tensors are made; torch's default if None.
    """

    def __init__(self, float_dtype: np.dtype = FLOAT_DTYPE, device: Any = None) -> None:
        self.float_dtype = as_dtype(float_dtype)
        self.device = device

    # --- dtypes -----------------------------------------------------------------

    as_dtype = staticmethod(as_dtype)

    def dtype_of(self, x: Array) -> np.dtype:
        """The dtype of a tensor in NumPy's names, or what a Python number becomes."""
        if type(x) in (bool, int, float):
            return result_dtype(type(x), float_dtype=self.float_dtype)
        return _TO_NUMPY[x.dtype]

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
                value, dtype=_TO_TORCH[wanted], device=self.device
            )
        array = np.asarray(value)
        if dtype is None:
            wanted = self._width(array.dtype)
        else:
            wanted = as_dtype(dtype)
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
        return x.to(_TO_TORCH[as_dtype(dtype)])

    def promote(
        self, tensors: Sequence[Array], *, to_float: bool = False
    ) -> tuple[Array, ...]:
        """Bring tensors to one dtype by `result_dtype`; see there.

        Args:
            tensors: tensors, Python numbers (they stay numbers beside a tensor) or
                None.
            to_float: whether integers become `float_dtype`.
        """
        given = [
            t
            if t is None or isinstance(t, (torch.Tensor, bool, int, float))
            else self.asarray(t)
            for t in tensors
        ]
        strong = {t.dtype for t in given if isinstance(t, torch.Tensor)}
        weak = {type(t) for t in given if isinstance(t, (bool, int, float))}
        if len(strong) == 1 and not weak:
            (only,) = strong
            if not to_float or only.is_floating_point:
                return tuple(given)
        if not strong and not weak:
            return tuple(given)
        wanted = result_dtype(
            *(_TO_NUMPY[d] for d in strong),
            *weak,
            to_float=to_float,
            float_dtype=self.float_dtype,
        )
        dtype = _TO_TORCH[wanted]
        return tuple(
            t.to(dtype)
            if isinstance(t, torch.Tensor)
            else t
            if t is None or strong
            else torch.scalar_tensor(t, dtype=dtype, device=self.device)
            for t in given
        )

    def stop_gradient(self, x: Array) -> Array:
        """`x`, constant for differentiation."""
        return x.detach()

    def scan(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        carry: Any,
        xs: Any,
        *,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """Run `carry, y = step(carry, x)` along the first axis; give carry and all y.

        Args:
            step: one step; `carry`, `x` and `y` are tensors, or tuples of them.
            carry: what the first step is given.
            xs: tensors that all have the same first axis.
            reverse: whether to start at the end; the y stay in the order of the xs.

        Raises:
            ValueError: there is nothing to run along.
        """
        first = xs
        while isinstance(first, tuple):
            first = next((x for x in first if x is not None), None)
        if first is None or first.shape[0] == 0:
            raise ValueError("scan needs at least one step, got an empty first axis.")
        length = first.shape[0]
        ys: list[Any] = [None] * length
        for i in reversed(range(length)) if reverse else range(length):
            carry, ys[i] = step(carry, _each(lambda x, i=i: x[i], xs))
        return carry, _each(lambda *y: torch.stack(y), *ys)

    # --- creation ---------------------------------------------------------------

    def _new(self, dtype: Any, like: Any) -> dict[str, Any]:
        device = like.device if isinstance(like, torch.Tensor) else self.device
        return {"dtype": _TO_TORCH[as_dtype(dtype)], "device": device}

    def zeros(self, shape: Any, dtype: Any = None, *, like: Any = None) -> torch.Tensor:
        """A tensor of zeros, on the device of `like`."""
        return torch.zeros(tuple(shape), **self._new(dtype or self.float_dtype, like))

    def ones(self, shape: Any, dtype: Any = None, *, like: Any = None) -> torch.Tensor:
        """A tensor of ones, on the device of `like`."""
        return torch.ones(tuple(shape), **self._new(dtype or self.float_dtype, like))

    def full(
        self, shape: Any, value: Any, dtype: Any = None, *, like: Any = None
    ) -> torch.Tensor:
        """A tensor of one value, on the device of `like`."""
        new = self._new(dtype or self.dtype_of(value), like)
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
        """Evenly spaced numbers; int32 if all three are ints."""
        if stop is None:
            start, stop = 0, start
        if (stop - start) * step < 0:  # NumPy gives nothing where torch raises
            stop = start
        if dtype is None:
            floats = any(isinstance(v, float) for v in (start, stop, step))
            dtype = self.float_dtype if floats else INT_DTYPE
        return torch.arange(start, stop, step, **self._new(dtype, like))

    def eye(
        self, rows: Any, columns: Any = None, k: int = 0, dtype: Any = None
    ) -> torch.Tensor:
        """Ones on the k-th diagonal."""
        columns = rows if columns is None else columns
        i = torch.arange(rows, device=self.device)[:, None]
        j = torch.arange(columns, device=self.device)[None]
        return (j - i == k).to(_TO_TORCH[as_dtype(dtype or self.float_dtype)])

    # --- arithmetic -------------------------------------------------------------

    add = _binary(torch.add)
    multiply = _binary(torch.multiply)
    divide = _binary(torch.true_divide)
    arctan2 = _binary(torch.atan2)
    maximum = _binary(torch.maximum)
    minimum = _binary(torch.minimum)
    subtract = _binary(torch.subtract)

    def logaddexp(self, left: Array, right: Array) -> torch.Tensor:
        """log(exp(left) + exp(right)) without overflow."""
        return torch.logaddexp(*_tensors(left, right))

    def power(self, left: Array, right: Array) -> torch.Tensor:
        """`left` to the power of `right`."""
        if isinstance(right, int) and not left.dtype.is_floating_point and right < 0:
            left, right = _tensors(left, right)  # torch refuses the number only
        return torch.pow(left, right)

    def floor_divide(self, left: Array, right: Array) -> torch.Tensor:
        """left / right, rounded down; integers by 0 give 0, as NumPy does."""
        down = lambda x, y: torch.div(x, y, rounding_mode="floor")
        return self._by_divisor(down, left, right)

    def remainder(self, left: Array, right: Array) -> torch.Tensor:
        """What floor_divide leaves, with the sign of `right`; integers by 0 give 0."""
        return self._by_divisor(torch.remainder, left, right)

    def _by_divisor(
        self, f: Callable[..., Any], left: Array, right: Array
    ) -> torch.Tensor:
        left, right = _tensors(left, right)
        if right.dtype.is_floating_point:
            return f(left, right)
        zero = right == 0
        return f(left, torch.where(zero, 1, right)).masked_fill(zero, 0)

    negative = staticmethod(torch.negative)
    absolute = staticmethod(torch.abs)
    reciprocal = staticmethod(torch.reciprocal)
    square = staticmethod(torch.square)
    sqrt = staticmethod(torch.sqrt)
    rsqrt = staticmethod(torch.rsqrt)
    exp = staticmethod(torch.exp)
    expm1 = staticmethod(torch.expm1)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    log2 = staticmethod(torch.log2)
    sin = staticmethod(torch.sin)
    cos = staticmethod(torch.cos)
    tan = staticmethod(torch.tan)
    sinh = staticmethod(torch.sinh)
    cosh = staticmethod(torch.cosh)
    tanh = staticmethod(torch.tanh)
    arcsin = staticmethod(torch.asin)
    arccos = staticmethod(torch.acos)
    arctan = staticmethod(torch.atan)
    arcsinh = staticmethod(torch.asinh)
    arccosh = staticmethod(torch.acosh)
    arctanh = staticmethod(torch.atanh)
    erf = staticmethod(torch.erf)
    floor = staticmethod(torch.floor)
    ceil = staticmethod(torch.ceil)
    trunc = staticmethod(torch.trunc)
    isnan = staticmethod(torch.isnan)
    isinf = staticmethod(torch.isinf)
    isfinite = staticmethod(torch.isfinite)

    def sign(self, x: Array) -> torch.Tensor:
        """-1, 0 or 1; NaN for NaN, which torch.sign takes for 0."""
        signs = torch.sign(x)
        return torch.where(x.isnan(), x, signs) if x.dtype.is_floating_point else signs

    def round(self, x: Array, decimals: int = 0) -> torch.Tensor:
        """Halves to the even neighbour."""
        return torch.round(x, decimals=decimals) if decimals else torch.round(x)

    def nan_to_num(
        self, x: Array, nan: float = 0.0, posinf: Any = None, neginf: Any = None
    ) -> torch.Tensor:
        """Finite numbers for NaN and the infinities; the largest ones by default."""
        return torch.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)

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

    # --- comparison, logic, bits ------------------------------------------------

    equal = _binary(torch.eq)
    not_equal = _binary(torch.ne)
    less = _binary(torch.lt)
    less_equal = _binary(torch.le)
    greater = _binary(torch.gt)
    greater_equal = _binary(torch.ge)
    logical_and = _binary(torch.logical_and)
    logical_or = _binary(torch.logical_or)
    logical_xor = _binary(torch.logical_xor)
    logical_not = staticmethod(torch.logical_not)
    bitwise_and = _binary(torch.bitwise_and)
    bitwise_or = _binary(torch.bitwise_or)
    bitwise_xor = _binary(torch.bitwise_xor)
    bitwise_not = staticmethod(torch.bitwise_not)
    left_shift = _binary(torch.bitwise_left_shift)
    right_shift = _binary(torch.bitwise_right_shift)

    # --- reductions -------------------------------------------------------------

    def sum(self, x: Array, axis: Axis = None, keepdims: bool = False) -> torch.Tensor:
        """Sum; short integers are counted in int32."""
        dtype = self._sum_dtype(x)
        axes = _axes(axis, x.ndim)
        if not axes:  # torch takes no axes for all of them
            return x.to(dtype)
        return torch.sum(x, axes, keepdim=keepdims, dtype=dtype)

    def prod(self, x: Array, axis: Axis = None, keepdims: bool = False) -> torch.Tensor:
        """Product; short integers are multiplied in int32."""
        dtype = self._sum_dtype(x)
        if axis is None and not keepdims:
            return torch.prod(x, dtype=dtype)
        x = x.to(dtype)
        for a in sorted(_axes(axis, x.ndim), reverse=True):  # one axis at a time
            x = torch.prod(x, a, keepdim=keepdims, dtype=dtype)
        return x

    def cumsum(self, x: Array, axis: int | None = None) -> torch.Tensor:
        """Running sum; of the flattened tensor without an axis."""
        x, axis = self._flat(x, axis)
        return torch.cumsum(x, axis, dtype=self._sum_dtype(x))

    def cumprod(self, x: Array, axis: int | None = None) -> torch.Tensor:
        """Running product; of the flattened tensor without an axis."""
        x, axis = self._flat(x, axis)
        return torch.cumprod(x, axis, dtype=self._sum_dtype(x))

    def _flat(self, x: Array, axis: int | None) -> tuple[torch.Tensor, int]:
        return (x.reshape(-1), 0) if axis is None else (x, axis)

    def _sum_dtype(self, x: Array) -> torch.dtype:
        return _TO_TORCH[sum_dtype(_TO_NUMPY[x.dtype])]

    def mean(self, x: Array, axis: Axis = None, keepdims: bool = False) -> torch.Tensor:
        """Arithmetic mean."""
        axes = _axes(axis, x.ndim)
        return torch.mean(x, axes, keepdim=keepdims) if axes else x

    def var(
        self, x: Array, axis: Axis = None, keepdims: bool = False, ddof: int = 0
    ) -> torch.Tensor:
        """Mean squared distance from the mean, over n - ddof."""
        axes = _axes(axis, x.ndim)
        n = math.prod(x.shape[a] for a in axes)
        if n <= ddof or not axes:  # torch.var would warn
            squares = torch.square(x - self.mean(x, axis, True))
            return self.sum(squares, axis, keepdims) / x.new_tensor(max(n - ddof, 0))
        return torch.var(x, axes, correction=ddof, keepdim=keepdims)

    def max(self, x: Array, axis: Axis = None, keepdims: bool = False) -> torch.Tensor:
        """The largest; NaN if there is one."""
        return self._extreme(torch.amax, "max", x, axis, keepdims)

    def min(self, x: Array, axis: Axis = None, keepdims: bool = False) -> torch.Tensor:
        """The smallest; NaN if there is one."""
        return self._extreme(torch.amin, "min", x, axis, keepdims)

    def _extreme(
        self, f: Callable[..., Any], name: str, x: Array, axis: Axis, keepdims: bool
    ) -> torch.Tensor:
        axes = _axes(axis, x.ndim)
        if not axes:
            return x
        self._not_empty(name, x, axes)
        return f(x, axes, keepdim=keepdims)

    def _not_empty(self, name: str, x: Array, axes: tuple[int, ...]) -> None:
        if any(x.shape[a] == 0 for a in axes):
            raise ValueError(
                f"{name} of nothing: shape {tuple(x.shape)} is empty along axes {axes}."
            )

    def argmax(
        self, x: Array, axis: int | None = None, keepdims: bool = False
    ) -> torch.Tensor:
        """Where the first of the largest is, as int32."""
        return self._arg(torch.argmax, "argmax", x, axis, keepdims)

    def argmin(
        self, x: Array, axis: int | None = None, keepdims: bool = False
    ) -> torch.Tensor:
        """Where the first of the smallest is, as int32."""
        return self._arg(torch.argmin, "argmin", x, axis, keepdims)

    def _arg(
        self,
        f: Callable[..., Any],
        name: str,
        x: Array,
        axis: int | None,
        keepdims: bool,
    ) -> torch.Tensor:
        self._not_empty(name, x, _axes(axis, x.ndim))
        if x.dtype == torch.bool:  # not implemented in torch
            x = x.to(torch.uint8)
        if axis is None:
            where = f(x.reshape(-1), 0).to(torch.int32)
            return where.reshape((1,) * x.ndim) if keepdims else where
        return f(x, axis, keepdim=keepdims).to(torch.int32)

    def any(self, x: Array, axis: Axis = None, keepdims: bool = False) -> torch.Tensor:
        """Whether some entry is not 0."""
        axes = _axes(axis, x.ndim)
        return torch.any(x != 0, axes, keepdim=keepdims) if axes else x != 0

    def all(self, x: Array, axis: Axis = None, keepdims: bool = False) -> torch.Tensor:
        """Whether no entry is 0."""
        axes = _axes(axis, x.ndim)
        return torch.all(x != 0, axes, keepdim=keepdims) if axes else x != 0

    def logsumexp(
        self, x: Array, axis: Axis = None, keepdims: bool = False
    ) -> torch.Tensor:
        """log(sum(exp(x))) without overflow."""
        axes = _axes(axis, x.ndim)
        return torch.logsumexp(x, axes, keepdim=keepdims) if axes else x

    # --- shapes -----------------------------------------------------------------

    def reshape(self, x: Array, shape: Any) -> torch.Tensor:
        """The same entries in another shape; one length may be -1."""
        return torch.reshape(x, tuple(_as_tuple(shape)))

    def transpose(self, x: Array, axes: Any = None) -> torch.Tensor:
        """The axes in another order, reversed by default."""
        return torch.permute(
            x, tuple(reversed(range(x.ndim))) if axes is None else axes
        )

    def broadcast_to(self, x: Array, shape: Any) -> torch.Tensor:
        """`x` repeated along axes of length 1 or missing ones in front."""
        return torch.broadcast_to(x, tuple(shape))

    def concat(self, tensors: Sequence[Array], axis: int = 0) -> torch.Tensor:
        """Joined along an axis that is there."""
        return torch.cat(tuple(tensors), axis)

    def stack(self, tensors: Sequence[Array], axis: int = 0) -> torch.Tensor:
        """Joined along a new axis."""
        return torch.stack(tuple(tensors), axis)

    def getitem(self, x: Array, key: tuple[Any, ...]) -> torch.Tensor:
        """x[key], for ints, slices, `...` and None; also with negative steps."""
        backwards = [isinstance(k, slice) and (k.step or 1) < 0 for k in key]
        if not any(backwards):
            return x[key]
        given = sum(k is not None and k is not ... for k in key)
        plain: list[Any] = []
        axis = 0
        for k, back in zip(key, backwards, strict=True):
            if k is ...:
                axis += x.ndim - given
            elif back:
                # A range from the end, turned round: its forward twin, then a flip.
                span = range(*k.indices(x.shape[axis]))
                x = torch.flip(x, (axis,)) if span else x
                start = x.shape[axis] - 1 - span[0] if span else 0
                k = slice(start, start + len(span) * -k.step, -k.step)
                k = k if span else slice(0, 0)
            plain.append(k)
            axis += k is not None and k is not ...
        return x[tuple(plain)]

    swapaxes = staticmethod(torch.swapaxes)
    moveaxis = staticmethod(torch.moveaxis)

    def squeeze(self, x: Array, axis: Axis = None) -> torch.Tensor:
        """Without axes of length 1; an error if a given one is longer."""
        if axis is None:
            return torch.squeeze(x)
        axes = _axes(axis, x.ndim)
        if any(x.shape[a] != 1 for a in axes):
            raise ValueError(
                f"squeeze: shape {tuple(x.shape)} is longer than 1 along axes {axes}."
            )
        return torch.squeeze(x, axes)

    def expand_dims(self, x: Array, axis: Any) -> torch.Tensor:
        """With new axes of length 1 at these places of the result."""
        axes = _as_tuple(axis)
        for a in sorted(a % (x.ndim + len(axes)) for a in axes):
            x = torch.unsqueeze(x, a)
        return x

    def flip(self, x: Array, axis: Axis = None) -> torch.Tensor:
        """In reverse order."""
        return torch.flip(x, _axes(axis, x.ndim))

    def roll(self, x: Array, shift: Any, axis: Axis = None) -> torch.Tensor:
        """Shifted in a ring."""
        if axis is None:
            return torch.roll(x, shift)
        axes = _as_tuple(axis)
        shifts = _as_tuple(shift)
        shifts = shifts * len(axes) if len(shifts) == 1 else shifts
        return torch.roll(x, shifts, axes)

    def tile(self, x: Array, reps: Any) -> torch.Tensor:
        """Over and over along each axis."""
        return torch.tile(x, _as_tuple(reps))

    def repeat(self, x: Array, repeats: int, axis: int | None = None) -> torch.Tensor:
        """Each entry over and over."""
        return torch.repeat_interleave(x, repeats, axis)

    def pad(
        self, x: Array, widths: Any, mode: str = "constant", value: Any = 0
    ) -> torch.Tensor:
        """`x` with (before, after) more entries along each axis."""
        if mode == "constant":
            flat = [w for pair in reversed(tuple(widths)) for w in pair]
            return F.pad(x, flat, value=value) if flat else x
        for axis, (before, after) in enumerate(widths):
            n = x.shape[axis]
            if before or after:
                # As NumPy, whose indices also say what happens beyond one reflection.
                rows = np.pad(np.arange(n), (before, after), mode=mode)  # pyright: ignore
                x = torch.index_select(x, axis, torch.as_tensor(rows, device=x.device))
        return x

    # --- indexing ---------------------------------------------------------------

    def take(
        self, x: Array, indices: Array, axis: int | None = None, mode: str = "fill"
    ) -> torch.Tensor:
        """Entries at `indices` along an axis."""
        x, axis = self._flat(x, axis)
        axis = axis % x.ndim
        indices = indices.to(torch.int64)
        if mode == "clip":
            indices = torch.clamp(indices, 0, x.shape[axis] - 1)
        else:
            indices = torch.where(indices < 0, indices + x.shape[axis], indices)
        picked = torch.index_select(x, axis, indices.reshape(-1))
        return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def take_along_axis(self, x: Array, indices: Array, axis: int = -1) -> torch.Tensor:
        """One entry for each index, all other axes running along."""
        indices = indices.to(torch.int64)
        indices = torch.where(indices < 0, indices + x.shape[axis], indices)
        return torch.take_along_dim(x, indices, axis)

    def scatter_add(
        self, x: Array, indices: Array, updates: Array, axis: int = 0
    ) -> torch.Tensor:
        """`x` with slices added at `indices`, as often as an index is there."""
        indices = indices.to(torch.int64)
        indices = torch.where(indices < 0, indices + x.shape[axis], indices)
        shape = list(x.shape)
        shape[axis] = indices.shape[0]
        return torch.index_add(x, axis, indices, updates.expand(shape))

    def sort(self, x: Array, axis: int = -1, descending: bool = False) -> torch.Tensor:
        """In order; NaN is the largest."""
        return torch.sort(x, dim=axis, descending=descending, stable=True).values

    def argsort(
        self, x: Array, axis: int = -1, descending: bool = False
    ) -> torch.Tensor:
        """The int32 indices that sort; equals keep their order."""
        order = torch.argsort(x, dim=axis, descending=descending, stable=True)
        return order.to(torch.int32)

    def top_k(self, x: Array, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The k largest of the last axis in order, and their indices."""
        if k > x.shape[-1]:
            raise ValueError(f"top_k: k={k} of only {x.shape[-1]} entries.")
        # torch.topk gives equal entries in any order; a stable sort does not.
        values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[..., :k], indices[..., :k].to(torch.int32)

    tril = staticmethod(torch.tril)
    triu = staticmethod(torch.triu)
    diagonal = staticmethod(torch.diagonal)

    # --- linear algebra ---------------------------------------------------------

    def matmul(self, left: Array, right: Array) -> torch.Tensor:
        """Matrix product, stacked over leading axes."""
        if left.dtype == torch.bool:  # whether some path leads there; not in torch
            return torch.matmul(left.to(torch.int32), right.to(torch.int32)) != 0
        return torch.matmul(left, right)

    def einsum(self, equation: str, *tensors: Array) -> torch.Tensor:
        """Sum of products by Einstein's convention."""
        return torch.einsum(equation, *tensors)

    def tensordot(self, left: Array, right: Array, axes: Any = 2) -> torch.Tensor:
        """Sum of products over the given axes of both."""
        return torch.tensordot(left, right, dims=axes)

    def cholesky(self, x: Array) -> torch.Tensor:
        """Lower triangular factor of the symmetric part; NaN if there is none."""
        factor, info = torch.linalg.cholesky_ex((x + x.mT) / 2)
        return torch.where((info == 0)[..., None, None], factor, math.nan)

    def solve(self, left: Array, right: Array) -> torch.Tensor:
        """x with left x = right."""
        if right.ndim == 1:
            return self.solve(left, right[:, None])[..., 0]
        return torch.linalg.solve_ex(left, right)[0]

    def inverse(self, x: Array) -> torch.Tensor:
        """Inverse of square matrices."""
        return torch.linalg.inv_ex(x)[0]

    determinant = staticmethod(torch.linalg.det)

    # --- activations ------------------------------------------------------------

    relu = staticmethod(F.relu)
    sigmoid = staticmethod(torch.sigmoid)
    silu = staticmethod(F.silu)
    log_sigmoid = staticmethod(F.logsigmoid)
    elu = staticmethod(F.elu)
    celu = staticmethod(F.celu)
    selu = staticmethod(F.selu)
    mish = staticmethod(F.mish)

    def softplus(self, x: Array) -> torch.Tensor:
        """log(1 + exp(x)); F.softplus gives x itself above 20, too early in float64."""
        return torch.logaddexp(x, torch.zeros((), dtype=x.dtype, device=x.device))

    def gelu(self, x: Array, approximate: bool = False) -> torch.Tensor:
        """Exact by erf, or approximate by tanh."""
        return F.gelu(x, approximate="tanh" if approximate else "none")

    def softmax(self, x: Array, axis: Axis = -1) -> torch.Tensor:
        """exp(x), divided by its sum."""
        if isinstance(axis, int):
            return torch.softmax(x, axis)
        return torch.exp(self.log_softmax(x, axis))

    def log_softmax(self, x: Array, axis: Axis = -1) -> torch.Tensor:
        """log(softmax(x))."""
        if isinstance(axis, int):
            return torch.log_softmax(x, axis)
        return x - self.logsumexp(x, axis, True)

    # --- random numbers ---------------------------------------------------------

    def _draw(self, key: Array, dtype: np.dtype) -> dict[str, Any]:
        """How torch.rand and the like draw from a key; the key may be without values."""
        new = self._new(dtype, key)
        if key.device.type == "meta":
            return new
        generator = torch.Generator(key.device).manual_seed(int(key))
        return {"generator": generator, **new}

    def random_uniform(
        self, key: Array, shape: Any, low: Any, high: Any, dtype: np.dtype
    ) -> torch.Tensor:
        """Uniform in [low, high)."""
        return low + (high - low) * torch.rand(shape, **self._draw(key, dtype))

    def random_normal(self, key: Array, shape: Any, dtype: np.dtype) -> torch.Tensor:
        """Standard normal."""
        return torch.randn(shape, **self._draw(key, dtype))

    def bernoulli(self, key: Array, p: float, shape: Any) -> torch.Tensor:
        """True with probability p."""
        return torch.rand(shape, **self._draw(key, FLOAT_DTYPE)) < p

    def random_integers(
        self, key: Array, shape: Any, low: int, high: int, dtype: np.dtype
    ) -> torch.Tensor:
        """Uniform integers in [low, high)."""
        return torch.randint(low, high, shape, **self._draw(key, dtype))

    def fold_in(self, key: Array, data: int) -> torch.Tensor:
        """A key of its own for each number, by the mixer of SplitMix64.

        Steele, Lea & Flood 2014, OOPSLA, fig. 13.
        """
        if key.device.type == "meta":
            return key
        mask = 2**64 - 1
        z = (int(key) + (data + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        seed = (z ^ (z >> 31)) >> 1  # 63 bits: a seed is a signed int64
        return torch.scalar_tensor(seed, dtype=torch.int64, device=key.device)

    def split_key(self, key: Array, count: int = 2) -> tuple[torch.Tensor, ...]:
        """New keys for an old one."""
        # Fold numbers that nobody else folds, so a split never meets a `fold_in`.
        return tuple(self.fold_in(key, 2**32 + i) for i in range(count))


def _each(f: Callable[..., Any], *trees: Any) -> Any:
    """`f` of the tensors that stand at the same place in tuples of tuples."""
    if trees[0] is None:
        return None
    if isinstance(trees[0], tuple):
        return tuple(_each(f, *parts) for parts in zip(*trees, strict=True))
    return f(*trees)
