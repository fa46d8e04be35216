"""ATen's arithmetic, comparisons, casts and activation functions in JAX."""

# ruff: noqa: FBT001 - the signatures are torch's own

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import lax

from frugax.models.ops import ALIASES, OPS, is_floating

from ._table import (
    Array,
    as_array,
    aten,
    aten_table,
    complex_of,
    in_float32,
    is_number,
    promoted_dtype,
    same_dtype,
    to_float,
)

# --- of one tensor ----------------------------------------------------------------


# Those that are the namespace's own, whatever it calls them.
_FLOAT_NAMES = """
acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 i0 lgamma log log10
log1p log2 reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh
"""
_SAME_NAMES = """
isfinite isinf isnan isneginf isposinf signbit logical_not bitwise_not square relu real
imag conj angle
"""
_FLOATS: dict[str, Callable[..., Array]] = {
    # At 0 it is minus infinity in torch, and NaN in JAX.
    "digamma": lambda x: jnp.where(
        x == 0, jnp.copysign(jnp.inf, -x), special.digamma(x)
    ),
    "erfinv": lax.erf_inv,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
    "special_log_ndtr": special.log_ndtr,
    "special_ndtri": special.ndtri,
}
_SAME: dict[str, Callable[..., Array]] = {
    "ceil": lambda x: jnp.ceil(x) if is_floating(x.dtype) else x,
    "floor": lambda x: jnp.floor(x) if is_floating(x.dtype) else x,
    "trunc": lambda x: jnp.trunc(x) if is_floating(x.dtype) else x,
    "neg negative": jnp.negative,
    "clone alias contiguous lift_fresh lift_fresh_copy": lambda x: x,
    "resolve_conj resolve_neg": lambda x: x,
    "detach detach_copy": lax.stop_gradient,
    "_conj _conj_physical conj_physical": jnp.conj,
    "round": lambda x, decimals=0: (
        jnp.round(x, decimals) if is_floating(x.dtype) else x
    ),
    "nan_to_num": lambda x, nan=None, posinf=None, neginf=None: jnp.nan_to_num(
        x, nan=nan or 0.0, posinf=posinf, neginf=neginf
    ),
}


def _of_floats(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda xp, x: function(xp, to_float(xp, x))


def _own(name: str) -> Callable[..., Array]:
    return lambda xp, x: getattr(xp, ALIASES.get(name, name))(x)


for _name in _FLOAT_NAMES.split():
    aten(_name)(_of_floats(_own(_name)))
for _name in _SAME_NAMES.split():
    aten(_name)(_own(_name))
aten_table(_FLOATS, _of_floats)
aten_table(_SAME)
aten_table({"polygamma": lambda n, x: special.polygamma(n, x), "frexp": jnp.frexp})
aten("abs", "absolute")(
    lambda xp, x: jnp.abs(x) if x.dtype.kind == "c" else xp.absolute(x)
)


@aten("sign", "sgn")
def _sign(xp: Any, x: Array) -> Array:
    if x.dtype == bool:
        return x
    if x.dtype.kind == "c":  # whose gradient jnp.sign takes to be 0
        is_zero = x == 0
        x = jnp.where(is_zero, 1, x)
        return jnp.where(is_zero, 0, x / jnp.abs(x))
    return (
        jnp.where(jnp.isnan(x), 0, jnp.sign(x)) if is_floating(x.dtype) else jnp.sign(x)
    )


# --- of several tensors -----------------------------------------------------------


def _add_binary(names: str, function: Callable[..., Array], *, floats: bool) -> None:
    def compute(xp: Any, x: Array, other: Any) -> Array:
        return function(*same_dtype(xp, x, other, to_float=floats))

    aten(*names.split())(compute)


def _floor_divide(x: Array, y: Array) -> Array:
    whole = jnp.floor_divide(x, y)
    # By 0 jnp's own gives NaN, and torch the infinite quotient.
    return jnp.where(y == 0, x / y, whole) if is_floating(x.dtype) else whole


def _atan2(y: Array, x: Array) -> Array:
    angle, is_zero = jnp.arctan2(y, x), (y == 0) & (x == 0)
    # The inner where keeps NaN out of the gradient, which is 0 there.
    inside = jnp.arctan2(jnp.where(is_zero, 1, y), x)
    return jnp.where(is_zero, lax.stop_gradient(angle), inside)


def _xlogy(x: Array, y: Array) -> Array:
    # Where it is 0 whatever `y` is, the gradient is 0 too.
    return special.xlogy(x, jnp.where((x == 0) & (y <= 0), 1, y))


_BINARY: dict[str, tuple[Callable[..., Array], bool]] = {
    "mul multiply": (jnp.multiply, False),
    "div true_divide divide": (jnp.true_divide, True),
    "floor_divide": (_floor_divide, False),
    "remainder": (jnp.remainder, False),
    "fmod": (lambda x, y: lax.rem(*jnp.broadcast_arrays(x, y)), False),
    "maximum max.other": (jnp.maximum, False),
    "minimum min.other": (jnp.minimum, False),
    "fmax": (lambda x, y: jnp.where((x >= y) | jnp.isnan(y), x, y), False),
    "fmin": (lambda x, y: jnp.where((x <= y) | jnp.isnan(y), x, y), False),
    "atan2 arctan2": (_atan2, True),
    "hypot": (jnp.hypot, True),
    "copysign": (jnp.copysign, True),
    "logaddexp": (jnp.logaddexp, True),
    "xlogy special_xlogy": (_xlogy, True),
    "igamma special_gammainc": (special.gammainc, True),
    "igammac special_gammaincc": (special.gammaincc, True),
    "special_zeta": (special.zeta, True),
    "nextafter": (jnp.nextafter, False),
    "eq": (jnp.equal, False),
    "ne not_equal": (jnp.not_equal, False),
    "lt less": (jnp.less, False),
    "le less_equal": (jnp.less_equal, False),
    "gt greater": (jnp.greater, False),
    "ge greater_equal": (jnp.greater_equal, False),
    "logical_and": (jnp.logical_and, False),
    "logical_or": (jnp.logical_or, False),
    "logical_xor": (jnp.logical_xor, False),
    "bitwise_and __and__": (jnp.bitwise_and, False),
    "bitwise_or __or__": (jnp.bitwise_or, False),
    "bitwise_xor __xor__": (jnp.bitwise_xor, False),
    "bitwise_left_shift __lshift__": (jnp.left_shift, False),
    "bitwise_right_shift __rshift__": (jnp.right_shift, False),
}
for _names, (_function, _floats) in _BINARY.items():
    _add_binary(_names, _function, floats=_floats)


def _scaled(xp: Any, x: Any, factor: Any) -> Any:
    """A tensor or number times a number, without an operation for the number 1."""
    if is_number(factor) and type(factor) is not bool and factor == 1:
        return x
    if is_number(x) and is_number(factor):
        return x * factor
    return jnp.multiply(*same_dtype(xp, x, factor))


@aten("add")
def _add(xp: Any, x: Array, other: Any, alpha: Any = 1) -> Array:
    dtype = promoted_dtype(xp, x, other)
    if dtype == np.bool_:
        return jnp.logical_or(*same_dtype(xp, x, other))
    return jnp.add(*same_dtype(xp, x, _scaled(xp, other, alpha), dtype=dtype))


@aten("sub", "subtract")
def _sub(xp: Any, x: Array, other: Any, alpha: Any = 1) -> Array:
    dtype = promoted_dtype(xp, x, other)
    return jnp.subtract(*same_dtype(xp, x, _scaled(xp, other, alpha), dtype=dtype))


@aten("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(
    xp: Any, x: Array, other: Any, *, rounding_mode: str | None = None
) -> Array:
    x, y = same_dtype(xp, x, other, to_float=rounding_mode is None)
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return _floor_divide(x, y)
    if is_floating(x.dtype):
        return jnp.trunc(x / y)
    return lax.div(*jnp.broadcast_arrays(x, y))


@aten("pow")
def _pow(xp: Any, x: Any, exponent: Any) -> Array:
    dtype = promoted_dtype(xp, x, exponent)
    # A whole number as exponent is a few products, with a gradient at 0 as torch's.
    if is_number(exponent) and float(exponent).is_integer() and abs(exponent) <= 64:
        return lax.integer_pow(as_array(xp, x, dtype), int(exponent))
    if is_number(exponent) and exponent == 0.5:
        return jnp.sqrt(as_array(xp, x, dtype))
    x, y = same_dtype(xp, x, exponent, dtype=dtype)
    if dtype.kind in "iu":
        # A whole number to a negative power is 0, but for 1 and -1.
        small = jnp.where(jnp.abs(x) == 1, x ** (y & 1), 0)
        return jnp.where(y < 0, small, x ** jnp.maximum(y, 0))
    # The inner where keeps NaN out of the gradient of 0 to the power of 0.
    is_zero = (x == 0) & (y == 0)
    return jnp.where(is_zero, 1, jnp.where(is_zero, 1, x) ** y)


@aten("where")
def _where(xp: Any, condition: Array, x: Any, other: Any) -> Array:
    dtype = promoted_dtype(xp, x, other)
    x, y = as_array(xp, x, dtype), as_array(xp, other, dtype)
    return jnp.where(condition.astype(bool), x, y)


@aten("masked_fill")
def _masked_fill(xp: Any, x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, as_array(xp, value, np.dtype(x.dtype)), x)


@aten("clamp")
def _clamp(xp: Any, x: Array, min: Any = None, max: Any = None) -> Array:
    bounds = [b for b in (min, max) if b is not None]
    dtype = promoted_dtype(xp, x, *bounds)
    x = xp.cast(x, dtype)
    # The gradient at a bound is that of `x`, and half of it with jnp.maximum.
    for bound, is_inside in ((min, jnp.greater_equal), (max, jnp.less_equal)):
        if bound is not None:
            x, bound = same_dtype(xp, x, bound, dtype=dtype)
            x = jnp.where(is_inside(x, bound) | jnp.isnan(x), x, bound)
    return x


# --- casts ------------------------------------------------------------------------


@aten("to.dtype", "to.dtype_layout", "to.device", "_to_copy", "to.other")
def _to(xp: Any, x: Array, *, dtype: Any = None) -> Array:
    # `from_torch` writes each of them as the one that has a dtype by name.
    return x if dtype is None else _cast(xp, x, dtype)


def _cast(xp: Any, x: Array, dtype: np.dtype) -> Array:
    if dtype.kind in "iu" and x.dtype.kind == "c":
        x = jnp.real(x)
    # Numbers beyond the least integers wrap around, and JAX would clip them.
    if dtype.kind in "iu" and dtype.itemsize < 4 and is_floating(x.dtype):
        x = xp.cast(x, np.int32)
    # XLA leaves out a rounding to bfloat16 that a wider dtype follows, if it may.
    if dtype == jnp.bfloat16 and x.dtype in (np.float32, np.float64):
        x = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    if x.dtype == jnp.bfloat16 and dtype in (np.float32, np.float64):
        return lax.reduce_precision(xp.cast(x, dtype), exponent_bits=8, mantissa_bits=7)
    return xp.cast(x, dtype)


# --- complex numbers --------------------------------------------------------------


@aten("complex")
def _complex(xp: Any, real: Array, imag: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@aten("polar")
def _polar(xp: Any, radius: Array, angle: Array) -> Array:
    parts = (radius * jnp.cos(angle), radius * jnp.sin(angle))
    return lax.complex(*jnp.broadcast_arrays(*parts))


@aten("view_as_complex", "view_as_complex_copy")
def _view_as_complex(xp: Any, x: Array) -> Array:
    # Complex numbers have at least two times 32 bits.
    wide = x.astype(np.float64 if complex_of(x.dtype).itemsize == 16 else np.float32)
    return lax.complex(wide[..., 0], wide[..., 1])


@aten("view_as_real", "view_as_real_copy")
def _view_as_real(xp: Any, x: Array) -> Array:
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1)


# --- activation functions ---------------------------------------------------------


def _elu(x: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    # The inner where keeps the gradient of the other branch finite.
    low = jnp.expm1(jnp.where(x > 0, 0, x) * input_scale) * (alpha * scale)
    return jnp.where(x > 0, x * scale, low)


def _softplus(x: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    soft = jnp.logaddexp(x * beta, jnp.zeros((), x.dtype)) / beta
    return jnp.where(x * beta > threshold, x, soft)


# Those whose gradient at a kink, and whose dtype, are the op's.
_OPS: dict[str, Callable[..., Array]] = {
    "hardtanh": lambda xp, x, min_val=-1, max_val=1: xp.clip(x, min_val, max_val),
    "leaky_relu": lambda xp, x, negative_slope=0.01: OPS["leaky_relu"].body(
        xp, x, slope=negative_slope
    ),
    "hardsigmoid": lambda xp, x: OPS["hard_sigmoid"].body(xp, x),
    "softsign": lambda xp, x: OPS["softsign"].body(xp, x),
}
for _name, _function in _OPS.items():
    aten(_name)(_function)


_ACTIVATIONS: dict[str, Callable[..., Array]] = {
    # 0 at -3 and 1 at 3, as is its gradient.
    "hardswish": lambda x: jnp.where(
        x <= -3, 0, jnp.where(x < 3, x * ((x + 3) / 6), x)
    ),
}
_WIDE_ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "silu": lambda x: x * jax.nn.sigmoid(x),
    "elu": _elu,
    "celu": lambda x, alpha=1: jnp.where(
        x > 0, x, jnp.expm1(jnp.where(x > 0, 0, x) / alpha) * alpha
    ),
    "softplus": _softplus,
}
aten_table(_ACTIVATIONS)
aten_table(_WIDE_ACTIVATIONS, in_float32)


@aten("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(xp: Any, x: Array, p: float, train: bool) -> Array:
    if train and p > 0:
        raise NotImplementedError(
            "this dropout draws random numbers in evaluation mode as well; pass it "
            "training=self.training, or a rate of 0"
        )
    return x


@aten("native_dropout")
def _native_dropout(xp: Any, x: Array, p: float, train: bool | None) -> Any:
    return _dropout(xp, x, p, bool(train)), jnp.ones(x.shape, bool)


def _add_softmax(names: str, function: Callable[..., Array]) -> None:
    def compute(xp: Any, x: Array, dim: int, dtype: Any = None) -> Array:
        # `_softmax` has a flag in place of the dtype, for a cast that GPUs make.
        if isinstance(dtype, np.dtype):
            x = xp.cast(x, dtype)
        axis = dim if x.ndim else ()
        return in_float32(lambda _, x: function(x, axis))(xp, to_float(xp, x))

    aten(*names.split())(compute)


def safe_softmax(x: Array, dim: Any) -> Array:
    """Softmax that is 0 where all entries are minus infinity, as in torch."""
    is_masked = jnp.all(jnp.isneginf(x), dim, keepdims=True)
    # The inner where keeps NaN out of the gradient.
    return jnp.where(is_masked, 0, jax.nn.softmax(jnp.where(is_masked, 0, x), dim))


_add_softmax("softmax _softmax", jax.nn.softmax)
_add_softmax("log_softmax _log_softmax", jax.nn.log_softmax)
_add_softmax("_safe_softmax", safe_softmax)


# --- lengths ----------------------------------------------------------------------


@aten("scalar_tensor")
def _scalar_tensor(xp: Any, value: Any, *, dtype: Any = None) -> Array:
    return as_array(xp, value, dtype or np.dtype(xp.float_dtype))
