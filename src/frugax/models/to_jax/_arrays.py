"""The array functions of JAX, for bodies of ops, where jnp's own follow other rules."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.models.ops import (
    as_dtype,
    drawing_dtype,
    int_dtype,
    is_floating,
    largest_below,
    promote,
    result_dtype,
    sum_dtype,
)

Array = Any  # a jax.Array, a tracer, or a Python number
Axis = int | Sequence[int] | None
_NUMBERS = (bool, int, float)


class Arrays:
    """Dtypes, elementwise functions, reductions, shapes, products and new arrays.

    Attributes:
        float_dtype: dtype of a Python float, and the default of new arrays.
        precision: of matrix products; None for JAX's default.
    """

    float_dtype: np.dtype
    # A float32 product on TPU uses bfloat16 passes by default, and on newer GPUs TF32
    # where that is allowed. This is the setting that changes it.
    precision: Any
    array_class = jax.Array  # tracers count as such as well

    as_dtype = staticmethod(as_dtype)
    promote = promote

    @property
    def int_dtype(self) -> np.dtype:
        """The dtype of indices and counts: as wide as the numbers of the backend."""
        return int_dtype(self.float_dtype)

    def dtype_of(self, x: Array) -> np.dtype:
        """Return the dtype of an array, or the one that a Python number becomes."""
        if type(x) in _NUMBERS:
            return result_dtype(type(x), float_dtype=self.float_dtype)
        return np.dtype(x.dtype)

    def asarray(self, value: Any, dtype: Any = None) -> jax.Array:
        """Convert numbers to an array, in `dtype` if given."""
        if dtype is None and type(value) in _NUMBERS:
            dtype = self.dtype_of(value)
        if dtype is not None:
            dtype = self._check_dtype(dtype)
        return jnp.asarray(value, dtype)

    def cast(self, x: Array, dtype: Any) -> jax.Array:
        """Convert the values to another dtype."""
        target = self._check_dtype(dtype)
        if not isinstance(x, jax.Array):
            return jnp.asarray(x, target)
        # astype would add an operation to the program even if the dtypes agree.
        if x.dtype == target:
            return x
        return x.astype(target)

    def _check_dtype(self, dtype: Any) -> np.dtype:
        checked = as_dtype(dtype)
        # JAX would give the 32-bit dtype with nothing but a warning.
        if jax.dtypes.canonicalize_dtype(checked) != checked:
            raise ValueError(
                f"{checked} needs 64-bit numbers, which JAX has switched off. Use "
                "JaxBackend(dtype=float64), or ask for the 32-bit dtype."
            )
        return checked

    # --- elementwise ------------------------------------------------------------------

    def power(self, left: Array, right: Array) -> Array:
        """`left` to the power of `right`; the gradient at 0^0 is 0, with jnp's NaN."""
        # The derivative in the exponent is x^y log(x), which is NaN at 0. Python
        # numbers as exponents are constants and need no such care.
        arrays = isinstance(left, jax.Array) and isinstance(right, jax.Array)
        if arrays and is_floating(self.dtype_of(right)):
            left = jnp.where((left == 0) & (right == 0), 1, left)  # 1^0 is 1 as well
        return jnp.power(left, right)

    def floor_divide(self, left: Array, right: Array) -> Array:
        """`left` / `right`, rounded down; integers by 0 give 0, as NumPy does."""
        return self._by_divisor(jnp.floor_divide, left, right)

    def remainder(self, left: Array, right: Array) -> Array:
        """Remainder of floor_divide, with the sign of `right`; integers by 0 give 0."""
        return self._by_divisor(jnp.remainder, left, right)

    def _by_divisor(self, f: Callable[..., Any], left: Array, right: Array) -> Array:
        traced = isinstance(right, jax.Array)
        if not traced or is_floating(self.dtype_of(right)):
            if not traced and right == 0 and not is_floating(self.dtype_of(left)):
                return jnp.zeros_like(left)
            return f(left, right)
        # The divisor is replaced before the division, because the result of an integer
        # division by 0 is implementation-defined in XLA.
        zero = right == 0
        return jnp.where(zero, 0, f(left, jnp.where(zero, 1, right)))

    def absolute(self, x: Array) -> Array:
        """|x|, with gradient 0 at 0 as in torch, where jnp.abs has 1."""
        if is_floating(self.dtype_of(x)):
            # jnp.sign has the derivative 0, so that of the product is sign(x).
            return x * jnp.sign(x)
        return jnp.abs(x)

    def clip(self, x: Array, low: Any = None, high: Any = None) -> Array:
        """`x` within the bounds; the gradient is 0 at and beyond them."""
        dtype = self.dtype_of(x)
        # clamp has no open ends, so a missing bound becomes one that changes nothing.
        # Integers have no infinity and take the limits of their dtype.
        least, most = (-math.inf, math.inf)
        if not is_floating(dtype):
            limits = jnp.iinfo(dtype)
            least, most = int(limits.min), int(limits.max)
        if low is None:
            low = least
        if high is None:
            high = most
        # lax.clamp rather than jnp.clip, whose gradient at a bound is a half.
        return lax.clamp(np.asarray(low, dtype), x, np.asarray(high, dtype))

    def gelu(self, x: Array, *, approximate: bool = False) -> Array:
        """Exact by erf, or approximate by tanh."""
        if approximate:
            return jax.nn.gelu(x, True)
        # jax.nn.gelu(x, False) uses erfc, which is more accurate below -4, where gelu
        # vanishes, and a third slower on a CPU. torch uses erf too.
        return x * ((lax.erf(x * math.sqrt(0.5)) + 1) * 0.5)

    # --- along axes -------------------------------------------------------------------

    def sum(self, x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Sum; short integers are counted in int32."""
        return jnp.sum(x, axis, keepdims=keepdims, dtype=self._sum_dtype(x))

    def prod(self, x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """Product; short integers are multiplied in int32."""
        return jnp.prod(x, axis, keepdims=keepdims, dtype=self._sum_dtype(x))

    def cumsum(self, x: Array, axis: int | None = None) -> Array:
        """Running sum; of the flattened array without an axis."""
        return self._running(jnp.cumsum, x, axis)

    def cumprod(self, x: Array, axis: int | None = None) -> Array:
        """Running product; of the flattened array without an axis."""
        return self._running(jnp.cumprod, x, axis)

    def _running(
        self, function: Callable[..., Array], x: Array, axis: int | None
    ) -> Array:
        # jnp adds halves up in their own dtype here: a running total of 16 bits stops
        # to grow after a few hundred entries.
        dtype = self._sum_dtype(x) or drawing_dtype(self.dtype_of(x))
        total = function(x, axis, dtype=dtype)
        return self.cast(total, self._sum_dtype(x) or self.dtype_of(x))

    def _sum_dtype(self, x: Array) -> np.dtype | None:
        # None for floats, because jnp accumulates half precision in float32 by itself.
        dtype = self.dtype_of(x)
        if is_floating(dtype):
            return None
        return sum_dtype(dtype, self.float_dtype)

    def argmax(
        self, x: Array, axis: int | None = None, *, keepdims: bool = False
    ) -> jax.Array:
        """Index of the first maximum."""
        # jnp gives int64 indices with 64-bit numbers switched on.
        return self.cast(jnp.argmax(x, axis, keepdims=keepdims), self.int_dtype)

    def argmin(
        self, x: Array, axis: int | None = None, *, keepdims: bool = False
    ) -> jax.Array:
        """Index of the first minimum."""
        return self.cast(jnp.argmin(x, axis, keepdims=keepdims), self.int_dtype)

    # --- shapes, indices and order ----------------------------------------------------

    concat = staticmethod(jnp.concatenate)

    def getitem(self, x: Array, key: tuple[Any, ...]) -> Array:
        """x[key], for ints, slices, `...` and None."""
        return x[key]

    def pad(
        self, x: Array, widths: Any, mode: str = "constant", value: Any = 0
    ) -> Array:
        """`x` with (before, after) more entries along each axis."""
        if mode == "constant":
            return jnp.pad(x, tuple(widths), mode=mode, constant_values=value)
        return jnp.pad(x, tuple(widths), mode=mode)

    # Indexing.

    def take(
        self, x: Array, indices: Array, axis: int | None = None, mode: str = "fill"
    ) -> Array:
        """Entries at `indices` along an axis."""
        return jnp.take(x, indices, axis, mode=mode)

    def scatter_add(
        self, x: Array, indices: Array, updates: Array, axis: int = 0
    ) -> Array:
        """`x` with slices added at `indices`, as often as an index is there."""
        # JAX drops updates out of range by default, which the op's rule demands; an
        # error is impossible in a compiled program.
        return x.at[(slice(None),) * (axis % x.ndim) + (indices,)].add(updates)

    def argsort(self, x: Array, axis: int = -1, *, descending: bool = False) -> Array:
        """The indices that sort; equals keep their order."""
        order = jnp.argsort(x, axis, stable=True, descending=descending)
        return self.cast(order, self.int_dtype)

    def top_k(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k largest of the last axis in order, and their indices."""
        # lax.top_k takes the first of equal entries, as the op defines it. torch needs
        # a stable sort for that.
        values, indices = lax.top_k(x, k)
        return values, self.cast(indices, self.int_dtype)

    # --- products ---------------------------------------------------------------------

    def matmul(self, left: Array, right: Array) -> Array:
        """Matrix product, stacked over leading axes."""
        return jnp.matmul(left, right, precision=self.precision)

    def einsum(self, equation: str, *tensors: Array) -> Array:
        """Sum of products by Einstein's convention."""
        return jnp.einsum(equation, *tensors, precision=self.precision)

    def tensordot(self, left: Array, right: Array, axes: Any = 2) -> Array:
        """Sum of products over the given axes of both."""
        return jnp.tensordot(left, right, axes, precision=self.precision)

    inverse = staticmethod(jnp.linalg.inv)
    determinant = staticmethod(jnp.linalg.det)

    # --- new arrays, and random draws -------------------------------------------------

    def zeros(self, shape: Any, dtype: Any = None, *, like: Any = None) -> jax.Array:
        """An array of zeros; `like` matters in torch only."""
        return jnp.zeros(tuple(shape), self._check_dtype(dtype or self.float_dtype))

    def ones(self, shape: Any, dtype: Any = None, *, like: Any = None) -> jax.Array:
        """An array of ones; `like` matters in torch only."""
        return jnp.ones(tuple(shape), self._check_dtype(dtype or self.float_dtype))

    def full(
        self, shape: Any, value: Any, dtype: Any = None, *, like: Any = None
    ) -> jax.Array:
        """An array of one value; `like` matters in torch only."""
        dtype = self._check_dtype(dtype or self.dtype_of(value))
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
        """Evenly spaced numbers; `int_dtype` if all three are ints."""
        if stop is None:
            start, stop = 0, start
        if dtype is None:
            dtype = self.int_dtype
            # jnp.arange alone would follow JAX's global flag for 64-bit numbers.
            if any(isinstance(v, float) for v in (start, stop, step)):
                dtype = self.float_dtype
        return jnp.arange(start, stop, step, self._check_dtype(dtype))

    def lengths(self, shape: Any) -> jax.Array:
        """An integer for each length, which may be symbolic while JAX traces."""
        return jnp.stack([jnp.asarray(n, self.int_dtype) for n in shape])

    def eye(
        self, rows: Any, columns: Any = None, k: int = 0, dtype: Any = None
    ) -> jax.Array:
        """Ones on the k-th diagonal."""
        return jnp.eye(rows, columns, k, self._check_dtype(dtype or self.float_dtype))

    def random_uniform(
        self, key: Array, shape: Any, low: Any, high: Any, dtype: np.dtype
    ) -> Array:
        """Uniform in [low, high)."""
        wide = drawing_dtype(dtype)
        low, high = (np.asarray(v, wide) for v in (low, high))
        drawn = jax.random.uniform(_as_key(key), tuple(shape), wide, low, high)
        if wide == dtype:
            return drawn
        return jnp.minimum(drawn.astype(dtype), largest_below(high, dtype))

    def random_normal(self, key: Array, shape: Any, dtype: np.dtype) -> Array:
        """Standard normal."""
        drawn = jax.random.normal(_as_key(key), tuple(shape), drawing_dtype(dtype))
        return drawn.astype(dtype)

    def bernoulli(self, key: Array, p: float, shape: Any) -> Array:
        """True with probability p."""
        return jax.random.bernoulli(_as_key(key), p, tuple(shape))

    def random_integers(
        self, key: Array, shape: Any, low: int, high: int, dtype: np.dtype
    ) -> Array:
        """Uniform integers in [low, high)."""
        return jax.random.randint(_as_key(key), tuple(shape), low, high, dtype)

    def fold_in(self, key: Array, index: Any) -> Array:
        """Derive a key from each number."""
        return jax.random.fold_in(_as_key(key), index)

    def split_key(self, key: Array, count: int = 2) -> tuple[Array, ...]:
        """Split a key."""
        return tuple(jax.random.split(_as_key(key), count))


def _as_key(key: Array) -> Array:
    """A key, or that of a seed: a whole number without axes, as on torch."""
    if isinstance(key, int):
        return jax.random.key(key)
    if jnp.issubdtype(key.dtype, jnp.integer) and not key.shape:
        return jax.random.key(key)
    return key
