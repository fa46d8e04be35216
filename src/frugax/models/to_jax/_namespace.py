"""The array namespace `xp` of JAX: what the bodies of the op table are written over.

Its methods have NumPy's names and rules. Where jnp under its strictest settings would
refuse (ranks or dtypes that differ), the namespace says explicitly what is meant; where
they agree already it adds nothing, so a traced body is as small as written by hand.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.models.ops import (
    FLOAT_DTYPE,
    INT_DTYPE,
    as_dtype,
    is_floating,
    result_dtype,
    sum_dtype,
)

from ._kernels import Kernels

Array = Any  # a jax.Array, a tracer, or a Python number
Axis = int | Sequence[int] | None


def _same_rank(*values: Array) -> Sequence[Array]:
    """Leading axes of length 1 for all that have fewer axes than the others."""
    ranks = [getattr(v, "ndim", 0) for v in values]
    most = max(ranks)
    if all(r in (0, most) for r in ranks):
        return values
    return [
        lax.broadcast_to_rank(v, most) if 0 < r < most else v
        for v, r in zip(values, ranks, strict=True)
    ]


def _broadcast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method that runs `function` once its operands have one rank."""

    def method(self: "JaxNamespace", left: Array, right: Array) -> Array:
        return function(*_same_rank(left, right))

    method.__doc__ = function.__doc__
    return method


class JaxNamespace(Kernels):
    """The operations of JAX, as bodies of ops see them.

    Attributes:
        float_dtype: what a float is when nothing else says so.
        precision: of matrix products and convolutions; None for JAX's default.
    """

    def __init__(
        self, float_dtype: np.dtype = FLOAT_DTYPE, precision: Any = None
    ) -> None:
        self.float_dtype = as_dtype(float_dtype)
        self.precision = precision

    # --- dtypes -----------------------------------------------------------------

    as_dtype = staticmethod(as_dtype)

    def dtype_of(self, x: Array) -> np.dtype:
        """The dtype of an array, or what a Python number becomes."""
        if type(x) in (bool, int, float):
            return result_dtype(type(x), float_dtype=self.float_dtype)
        return np.dtype(x.dtype)

    def asarray(self, value: Any, dtype: Any = None) -> jax.Array:
        """An array of numbers, in `dtype` if given."""
        if dtype is None and type(value) in (bool, int, float):
            dtype = self.dtype_of(value)
        return jnp.asarray(value, None if dtype is None else self._known(dtype))

    def cast(self, x: Array, dtype: Any) -> jax.Array:
        """The same values in another dtype."""
        wanted = self._known(dtype)
        if not isinstance(x, jax.Array):
            return jnp.asarray(x, wanted)
        return x if x.dtype == wanted else x.astype(wanted)

    def _known(self, dtype: Any) -> np.dtype:
        wanted = as_dtype(dtype)
        if jax.dtypes.canonicalize_dtype(wanted) != wanted:
            raise ValueError(
                f"{wanted} needs 64-bit numbers, which JAX has switched off. Use "
                "JaxBackend(dtype=float64), or ask for the 32-bit dtype."
            )
        return wanted

    def promote(
        self, tensors: Sequence[Array], *, to_float: bool = False
    ) -> tuple[Array, ...]:
        """Bring tensors to one dtype by `result_dtype`; see there.

        Args:
            tensors: arrays, Python numbers (they stay what they are beside an array,
                as JAX takes them for weak) or None.
            to_float: whether integers become `float_dtype`.
        """
        given = [
            t
            if t is None or isinstance(t, (jax.Array, bool, int, float))
            else jnp.asarray(t)
            for t in tensors
        ]
        strong = {t.dtype for t in given if isinstance(t, jax.Array)}
        weak = {type(t) for t in given if isinstance(t, (bool, int, float))}
        if len(strong) == 1 and not weak:
            (wanted,) = strong
            if not to_float or is_floating(wanted):
                return tuple(given)
        if not strong and not weak:
            return tuple(given)
        wanted = result_dtype(
            *strong, *weak, to_float=to_float, float_dtype=self.float_dtype
        )
        return tuple(self._promoted(t, wanted, alone=not strong) for t in given)

    def _promoted(self, t: Array, wanted: np.dtype, *, alone: bool) -> Array:
        if t is None:
            return None
        if isinstance(t, jax.Array):
            return t if t.dtype == wanted else t.astype(wanted)
        if alone:
            return jnp.asarray(t, wanted)
        # An int stays an int beside floats: x ** 2 is then one multiplication.
        return int(t) if isinstance(t, bool) and wanted != np.bool_ else t

    def scope(self, name: str) -> Any:
        """A context whose operations a profiler shows under `name`."""
        return jax.named_scope(name)

    def stop_gradient(self, x: Array) -> Array:
        """`x`, constant for differentiation."""
        return lax.stop_gradient(x)

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
            step: one step; `carry`, `x` and `y` are arrays, or tuples of them.
            carry: what the first step is given.
            xs: arrays that all have the same first axis.
            reverse: whether to start at the end; the y stay in the order of the xs.
        """
        return lax.scan(step, carry, xs, reverse=reverse)

    # --- creation ---------------------------------------------------------------

    def zeros(self, shape: Any, dtype: Any = None, *, like: Any = None) -> jax.Array:
        """An array of zeros; `like` only matters where devices do."""
        return jnp.zeros(tuple(shape), self._known(dtype or self.float_dtype))

    def ones(self, shape: Any, dtype: Any = None, *, like: Any = None) -> jax.Array:
        """An array of ones; `like` only matters where devices do."""
        return jnp.ones(tuple(shape), self._known(dtype or self.float_dtype))

    def full(
        self, shape: Any, value: Any, dtype: Any = None, *, like: Any = None
    ) -> jax.Array:
        """An array of one value; `like` only matters where devices do."""
        dtype = self._known(dtype or self.dtype_of(value))
        return jnp.full(tuple(shape), value, dtype)

    def arange(
        self,
        start: Any,
        stop: Any = None,
        step: Any = 1,
        dtype: Any = None,
        *,
        like: Any = None,
    ) -> jax.Array:
        """Evenly spaced numbers; int32 if all three are ints."""
        if stop is None:
            start, stop = 0, start
        if dtype is None:
            floats = any(isinstance(v, float) for v in (start, stop, step))
            dtype = self.float_dtype if floats else INT_DTYPE
        return jnp.arange(start, stop, step, self._known(dtype))

    def eye(
        self, rows: Any, columns: Any = None, k: int = 0, dtype: Any = None
    ) -> jax.Array:
        """Ones on the k-th diagonal."""
        return jnp.eye(rows, columns, k, self._known(dtype or self.float_dtype))

    # --- arithmetic -------------------------------------------------------------

    add = _broadcast(jnp.add)
    subtract = _broadcast(jnp.subtract)
    multiply = _broadcast(jnp.multiply)
    divide = _broadcast(jnp.true_divide)
    arctan2 = _broadcast(jnp.arctan2)
    maximum = _broadcast(jnp.maximum)
    minimum = _broadcast(jnp.minimum)
    logaddexp = _broadcast(jnp.logaddexp)
    power = _broadcast(jnp.power)

    def floor_divide(self, left: Array, right: Array) -> Array:
        """left / right, rounded down; integers by 0 give 0, as NumPy does."""
        return self._by_divisor(jnp.floor_divide, left, right)

    def remainder(self, left: Array, right: Array) -> Array:
        """What floor_divide leaves, with the sign of `right`; integers by 0 give 0."""
        return self._by_divisor(jnp.remainder, left, right)

    def _by_divisor(self, f: Callable[..., Any], left: Array, right: Array) -> Array:
        left, right = _same_rank(left, right)
        traced = isinstance(right, jax.Array)
        if not traced or is_floating(self.dtype_of(right)):
            if not traced and right == 0 and not is_floating(self.dtype_of(left)):
                return jnp.zeros_like(left)
            return f(left, right)
        zero = right == 0
        return jnp.where(zero, 0, f(left, jnp.where(zero, 1, right)))

    negative = staticmethod(jnp.negative)
    absolute = staticmethod(jnp.abs)
    sign = staticmethod(jnp.sign)
    reciprocal = staticmethod(jnp.reciprocal)
    square = staticmethod(jnp.square)
    sqrt = staticmethod(jnp.sqrt)
    rsqrt = staticmethod(lax.rsqrt)
    exp = staticmethod(jnp.exp)
    expm1 = staticmethod(jnp.expm1)
    log = staticmethod(jnp.log)
    log1p = staticmethod(jnp.log1p)
    log2 = staticmethod(jnp.log2)
    sin = staticmethod(jnp.sin)
    cos = staticmethod(jnp.cos)
    tan = staticmethod(jnp.tan)
    sinh = staticmethod(jnp.sinh)
    cosh = staticmethod(jnp.cosh)
    tanh = staticmethod(jnp.tanh)
    arcsin = staticmethod(jnp.arcsin)
    arccos = staticmethod(jnp.arccos)
    arctan = staticmethod(jnp.arctan)
    arcsinh = staticmethod(jnp.arcsinh)
    arccosh = staticmethod(jnp.arccosh)
    arctanh = staticmethod(jnp.arctanh)
    erf = staticmethod(lax.erf)
    floor = staticmethod(jnp.floor)
    ceil = staticmethod(jnp.ceil)
    trunc = staticmethod(jnp.trunc)
    round = staticmethod(jnp.round)
    isnan = staticmethod(jnp.isnan)
    isinf = staticmethod(jnp.isinf)
    isfinite = staticmethod(jnp.isfinite)

    def nan_to_num(
        self, x: Array, nan: float = 0.0, posinf: Any = None, neginf: Any = None
    ) -> Array:
        """Finite numbers for NaN and the infinities; the largest ones by default."""
        return jnp.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)

    def clip(self, x: Array, low: Any = None, high: Any = None) -> Array:
        """`x` within the bounds; the gradient is 0 at and beyond them."""
        dtype = self.dtype_of(x)
        least, most = (-math.inf, math.inf)
        if not is_floating(dtype):
            limits = jnp.iinfo(dtype)
            least, most = int(limits.min), int(limits.max)
        bounds = (least if low is None else low, most if high is None else high)
        low, high = (np.asarray(b, dtype) for b in bounds)
        return lax.clamp(low, x, high)

    def where(self, condition: Array, left: Array, right: Array) -> Array:
        """`left` where the condition holds, `right` elsewhere."""
        return jnp.where(*_same_rank(condition, left, right))

    # --- comparison, logic, bits ------------------------------------------------

    equal = _broadcast(jnp.equal)
    not_equal = _broadcast(jnp.not_equal)
    less = _broadcast(jnp.less)
    less_equal = _broadcast(jnp.less_equal)
    greater = _broadcast(jnp.greater)
    greater_equal = _broadcast(jnp.greater_equal)
    logical_and = _broadcast(jnp.logical_and)
    logical_or = _broadcast(jnp.logical_or)
    logical_xor = _broadcast(jnp.logical_xor)
    logical_not = staticmethod(jnp.logical_not)
    bitwise_and = _broadcast(jnp.bitwise_and)
    bitwise_or = _broadcast(jnp.bitwise_or)
    bitwise_xor = _broadcast(jnp.bitwise_xor)
    bitwise_not = staticmethod(jnp.bitwise_not)
    left_shift = _broadcast(jnp.left_shift)
    right_shift = _broadcast(jnp.right_shift)

    # --- reductions -------------------------------------------------------------

    def sum(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """Sum; short integers are counted in int32."""
        return jnp.sum(x, axis, keepdims=keepdims, dtype=self._sum_dtype(x))

    def prod(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """Product; short integers are multiplied in int32."""
        return jnp.prod(x, axis, keepdims=keepdims, dtype=self._sum_dtype(x))

    def cumsum(self, x: Array, axis: int | None = None) -> Array:
        """Running sum; of the flattened array without an axis."""
        return jnp.cumsum(x, axis, dtype=self._sum_dtype(x))

    def cumprod(self, x: Array, axis: int | None = None) -> Array:
        """Running product; of the flattened array without an axis."""
        return jnp.cumprod(x, axis, dtype=self._sum_dtype(x))

    def _sum_dtype(self, x: Array) -> np.dtype | None:
        # Floats are left alone, so that jnp adds halves up in float32 by itself.
        dtype = self.dtype_of(x)
        return None if is_floating(dtype) else sum_dtype(dtype)

    def mean(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """Arithmetic mean."""
        return jnp.mean(x, axis, keepdims=keepdims)

    def var(
        self, x: Array, axis: Axis = None, keepdims: bool = False, ddof: int = 0
    ) -> Array:
        """Mean squared distance from the mean, over n - ddof."""
        return jnp.var(x, axis, keepdims=keepdims, ddof=ddof)

    def max(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """The largest; NaN if there is one."""
        return jnp.max(x, axis, keepdims=keepdims)

    def min(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """The smallest; NaN if there is one."""
        return jnp.min(x, axis, keepdims=keepdims)

    def argmax(
        self, x: Array, axis: int | None = None, keepdims: bool = False
    ) -> jax.Array:
        """Where the first of the largest is, as int32."""
        return self.cast(jnp.argmax(x, axis, keepdims=keepdims), INT_DTYPE)

    def argmin(
        self, x: Array, axis: int | None = None, keepdims: bool = False
    ) -> jax.Array:
        """Where the first of the smallest is, as int32."""
        return self.cast(jnp.argmin(x, axis, keepdims=keepdims), INT_DTYPE)

    def any(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """Whether some entry is not 0."""
        return jnp.any(x, axis, keepdims=keepdims)

    def all(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """Whether no entry is 0."""
        return jnp.all(x, axis, keepdims=keepdims)

    def logsumexp(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        """log(sum(exp(x))) without overflow."""
        return jax.nn.logsumexp(x, axis, keepdims=keepdims)

    # --- shapes -----------------------------------------------------------------

    def reshape(self, x: Array, shape: Any) -> Array:
        """The same entries in another shape; one length may be -1."""
        return jnp.reshape(x, tuple(shape))

    def transpose(self, x: Array, axes: Any = None) -> Array:
        """The axes in another order, reversed by default."""
        return jnp.transpose(x, axes)

    def broadcast_to(self, x: Array, shape: Any) -> Array:
        """`x` repeated along axes of length 1 or missing ones in front."""
        return jnp.broadcast_to(x, tuple(shape))

    def concat(self, tensors: Sequence[Array], axis: int = 0) -> Array:
        """Joined along an axis that is there."""
        return jnp.concatenate(tuple(tensors), axis)

    def stack(self, tensors: Sequence[Array], axis: int = 0) -> Array:
        """Joined along a new axis."""
        return jnp.stack(tuple(tensors), axis)

    def getitem(self, x: Array, key: tuple[Any, ...]) -> Array:
        """x[key], for ints, slices, `...` and None."""
        return x[key]

    swapaxes = staticmethod(jnp.swapaxes)
    moveaxis = staticmethod(jnp.moveaxis)
    squeeze = staticmethod(jnp.squeeze)
    expand_dims = staticmethod(jnp.expand_dims)
    flip = staticmethod(jnp.flip)
    roll = staticmethod(jnp.roll)
    tile = staticmethod(jnp.tile)
    repeat = staticmethod(jnp.repeat)

    def pad(
        self, x: Array, widths: Any, mode: str = "constant", value: Any = 0
    ) -> Array:
        """`x` with (before, after) more entries along each axis."""
        more = {"constant_values": value} if mode == "constant" else {}
        return jnp.pad(x, tuple(widths), mode=mode, **more)

    # --- indexing ---------------------------------------------------------------

    def take(
        self, x: Array, indices: Array, axis: int | None = None, mode: str = "fill"
    ) -> Array:
        """Entries at `indices` along an axis."""
        return jnp.take(x, indices, axis, mode=mode)

    def take_along_axis(self, x: Array, indices: Array, axis: int = -1) -> Array:
        """One entry for each index, all other axes running along."""
        return jnp.take_along_axis(x, indices, axis)

    def scatter_add(
        self, x: Array, indices: Array, updates: Array, axis: int = 0
    ) -> Array:
        """`x` with slices added at `indices`, as often as an index is there."""
        return x.at[(slice(None),) * (axis % x.ndim) + (indices,)].add(updates)

    def sort(self, x: Array, axis: int = -1, descending: bool = False) -> Array:
        """In order; NaN is the largest."""
        return jnp.sort(x, axis, descending=descending)

    def argsort(self, x: Array, axis: int = -1, descending: bool = False) -> Array:
        """The int32 indices that sort; equals keep their order."""
        order = jnp.argsort(x, axis, stable=True, descending=descending)
        return self.cast(order, INT_DTYPE)

    def top_k(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k largest of the last axis in order, and their indices."""
        values, indices = lax.top_k(x, k)
        return values, self.cast(indices, INT_DTYPE)

    tril = staticmethod(jnp.tril)
    triu = staticmethod(jnp.triu)
    diagonal = staticmethod(jnp.diagonal)

    # --- linear algebra ---------------------------------------------------------

    def matmul(self, left: Array, right: Array) -> Array:
        """Matrix product, stacked over leading axes."""
        return jnp.matmul(left, right, precision=self.precision)

    def einsum(self, equation: str, *tensors: Array) -> Array:
        """Sum of products by Einstein's convention."""
        return jnp.einsum(equation, *tensors, precision=self.precision)

    def tensordot(self, left: Array, right: Array, axes: Any = 2) -> Array:
        """Sum of products over the given axes of both."""
        return jnp.tensordot(left, right, axes, precision=self.precision)

    cholesky = staticmethod(jnp.linalg.cholesky)
    solve = staticmethod(jnp.linalg.solve)
    inverse = staticmethod(jnp.linalg.inv)
    determinant = staticmethod(jnp.linalg.det)

    # --- activations ------------------------------------------------------------

    relu = staticmethod(jax.nn.relu)
    sigmoid = staticmethod(jax.nn.sigmoid)
    silu = staticmethod(jax.nn.silu)
    softplus = staticmethod(jax.nn.softplus)
    log_sigmoid = staticmethod(jax.nn.log_sigmoid)
    elu = staticmethod(jax.nn.elu)
    celu = staticmethod(jax.nn.celu)
    selu = staticmethod(jax.nn.selu)
    mish = staticmethod(jax.nn.mish)

    def gelu(self, x: Array, approximate: bool = False) -> Array:
        """Exact by erf, or approximate by tanh."""
        if approximate:
            return jax.nn.gelu(x, True)
        # jax.nn.gelu(x, False) is by erfc: better below -4, where nothing is left of
        # it, and a third slower on a CPU; torch has erf too.
        return x * ((lax.erf(x * math.sqrt(0.5)) + 1) * 0.5)

    def softmax(self, x: Array, axis: Axis = -1) -> Array:
        """exp(x), divided by its sum."""
        return jax.nn.softmax(x, axis)

    def log_softmax(self, x: Array, axis: Axis = -1) -> Array:
        """log(softmax(x))."""
        return jax.nn.log_softmax(x, axis)

    # --- random numbers ---------------------------------------------------------

    def random_uniform(
        self, key: Array, shape: Any, low: Any, high: Any, dtype: np.dtype
    ) -> Array:
        """Uniform in [low, high)."""
        low, high = (np.asarray(v, dtype) for v in (low, high))
        return jax.random.uniform(key, tuple(shape), dtype, low, high)

    def random_normal(self, key: Array, shape: Any, dtype: np.dtype) -> Array:
        """Standard normal."""
        return jax.random.normal(key, tuple(shape), dtype)

    def bernoulli(self, key: Array, p: float, shape: Any) -> Array:
        """True with probability p."""
        return jax.random.bernoulli(key, p, tuple(shape))

    def random_integers(
        self, key: Array, shape: Any, low: int, high: int, dtype: np.dtype
    ) -> Array:
        """Uniform integers in [low, high)."""
        return jax.random.randint(key, tuple(shape), low, high, dtype)

    def fold_in(self, key: Array, index: Any) -> Array:
        """A key of its own for each number."""
        return jax.random.fold_in(key, index)

    def split_key(self, key: Array, count: int = 2) -> tuple[Array, ...]:
        """New keys for an old one."""
        return tuple(jax.random.split(key, count))
