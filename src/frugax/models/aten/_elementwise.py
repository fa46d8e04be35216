"""ATen's arithmetic, comparisons, casts and activation functions in JAX."""

# ruff: noqa: FBT001 - the signatures are torch's own

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import lax

from frugax.models.ops import is_floating

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


_FLOATS: dict[str, Callable[..., Array]] = {
    "acos arccos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "deg2rad": jnp.deg2rad,
    "digamma": special.digamma,
    "erf special_erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "lgamma": special.gammaln,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "rad2deg": jnp.rad2deg,
    "reciprocal": jnp.reciprocal,
    "rsqrt": lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "sinc": jnp.sinc,
    "sinh": jnp.sinh,
    "special_i0 i0": special.i0,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
}
_SAME: dict[str, Callable[..., Array]] = {
    "abs absolute": jnp.abs,
    "ceil": lambda x: jnp.ceil(x) if is_floating(x.dtype) else x,
    "floor": lambda x: jnp.floor(x) if is_floating(x.dtype) else x,
    "trunc": lambda x: jnp.trunc(x) if is_floating(x.dtype) else x,
    "frac": lambda x: x - jnp.trunc(x),
    "neg negative": jnp.negative,
    "positive": lambda x: x,
    "sign sgn": lambda x: x if x.dtype == bool else jnp.sign(x),
    "square": jnp.square,
    "relu": jax.nn.relu,
    "clone alias contiguous lift_fresh lift_fresh_copy view_as": lambda x: x,
    "resolve_conj resolve_neg": lambda x: x,
    "detach detach_copy": lax.stop_gradient,
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "isneginf": jnp.isneginf,
    "isposinf": jnp.isposinf,
    "signbit": jnp.signbit,
    "logical_not": jnp.logical_not,
    "bitwise_not": jnp.bitwise_not,
    "real": jnp.real,
    "imag": jnp.imag,
    "conj _conj _conj_physical conj_physical": jnp.conj,
    "angle": jnp.angle,
    "round": lambda x, decimals=0: (
        jnp.round(x, decimals) if is_floating(x.dtype) else x
    ),
    "nan_to_num": lambda x, nan=None, posinf=None, neginf=None: jnp.nan_to_num(
        x, nan=nan or 0.0, posinf=posinf, neginf=neginf
    ),
}


def _of_floats(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda xp, x: function(xp, to_float(xp, x))


aten_table(_FLOATS, _of_floats)
aten_table(_SAME)


# --- of several tensors -----------------------------------------------------------


def _add_binary(names: str, function: Callable[..., Array], *, floats: bool) -> None:
    def compute(xp: Any, x: Array, other: Any) -> Array:
        return function(*same_dtype(xp, x, other, to_float=floats))

    aten(*names.split())(compute)


def _floor_divide(x: Array, y: Array) -> Array:
    if is_floating(x.dtype):
        # jnp's own gives NaN where torch gives the infinite quotient.
        quotient = x / y
        return jnp.where(jnp.isinf(quotient), quotient, jnp.floor_divide(x, y))
    return jnp.floor_divide(x, y)


_BINARY: dict[str, tuple[Callable[..., Array], bool]] = {
    "mul multiply": (jnp.multiply, False),
    "div true_divide divide": (jnp.true_divide, True),
    "floor_divide": (_floor_divide, False),
    "remainder": (jnp.remainder, False),
    "fmod": (lambda x, y: lax.rem(*jnp.broadcast_arrays(x, y)), False),
    "maximum max.other": (jnp.maximum, False),
    "minimum min.other": (jnp.minimum, False),
    "fmax": (jnp.fmax, False),
    "fmin": (jnp.fmin, False),
    "atan2 arctan2": (jnp.arctan2, True),
    "hypot": (jnp.hypot, True),
    "copysign": (jnp.copysign, True),
    "logaddexp": (jnp.logaddexp, True),
    "xlogy special_xlogy": (special.xlogy, True),
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


@aten("rsub")
def _rsub(xp: Any, x: Array, other: Any, alpha: Any = 1) -> Array:
    dtype = promoted_dtype(xp, x, other)
    return jnp.subtract(*same_dtype(xp, other, _scaled(xp, x, alpha), dtype=dtype))


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
    return jnp.power(*same_dtype(xp, x, exponent, dtype=dtype))


@aten("where")
def _where(xp: Any, condition: Array, x: Any, other: Any) -> Array:
    dtype = promoted_dtype(xp, x, other)
    x, y = as_array(xp, x, dtype), as_array(xp, other, dtype)
    return jnp.where(condition.astype(bool), x, y)


@aten("masked_fill")
def _masked_fill(xp: Any, x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, as_array(xp, value, np.dtype(x.dtype)), x)


@aten("clamp", "clip")
def _clamp(xp: Any, x: Array, min: Any = None, max: Any = None) -> Array:
    bounds = [b for b in (min, max) if b is not None]
    dtype = promoted_dtype(xp, x, *bounds)
    x = xp.cast(x, dtype)
    if min is not None:
        x = jnp.maximum(*same_dtype(xp, x, min, dtype=dtype))
    if max is not None:
        x = jnp.minimum(*same_dtype(xp, x, max, dtype=dtype))
    return x


aten("clamp_min")(_clamp)
aten("clamp_max")(lambda xp, x, max: _clamp(xp, x, None, max))


@aten("addcmul")
def _addcmul(xp: Any, x: Array, y: Array, z: Array, *, value: Any = 1) -> Array:
    x, y, z = same_dtype(xp, x, y, z)
    return x + _scaled(xp, y * z, value)


@aten("addcdiv")
def _addcdiv(xp: Any, x: Array, y: Array, z: Array, *, value: Any = 1) -> Array:
    x, y, z = same_dtype(xp, x, y, z)
    return x + _scaled(xp, y / z, value)


@aten("lerp")
def _lerp(xp: Any, x: Array, end: Array, weight: Any) -> Array:
    x, end, weight = same_dtype(xp, x, end, weight)
    return x + weight * (end - x)


# --- casts ------------------------------------------------------------------------


@aten("to.dtype", "to.dtype_layout", "to.device", "_to_copy", "to.other")
def _to(xp: Any, x: Array, *rest: Any, dtype: Any = None) -> Array:
    # By position there are dtypes, a tensor whose dtype is meant, and flags of storage.
    given = [dtype, *rest]
    for value in given:
        if isinstance(value, np.dtype):
            return _cast(xp, x, value)
        if hasattr(value, "dtype"):
            return _cast(xp, x, np.dtype(value.dtype))
    return x


@aten("type_as")
def _type_as(xp: Any, x: Array, other: Array) -> Array:
    return _cast(xp, x, np.dtype(other.dtype))


def _cast(xp: Any, x: Array, dtype: np.dtype) -> Array:
    if dtype.kind in "iu" and x.dtype.kind == "c":
        x = jnp.real(x)
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


def _glu(x: Array, dim: int = -1) -> Array:
    left, right = jnp.split(x, 2, dim)
    return left * jax.nn.sigmoid(right)


def _hardshrink(x: Array, lambd: Any = 0.5) -> Array:
    return jnp.where(jnp.abs(x) <= lambd, jnp.zeros((), x.dtype), x)


def _logit(x: Array, eps: float | None = None) -> Array:
    x = x if eps is None else jnp.clip(x, eps, 1 - eps)
    return jnp.log(x) - jnp.log1p(-x)


_ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "relu6": lambda x: jnp.clip(x, 0, 6),
    "hardtanh": lambda x, min_val=-1, max_val=1: jnp.clip(x, min_val, max_val),
    "leaky_relu": lambda x, negative_slope=0.01: jnp.where(
        x > 0, x, x * negative_slope
    ),
    "glu": _glu,
    "hardswish": lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: jnp.clip(x + 3, 0, 6) / 6,
    "softsign": lambda x: x / (1 + jnp.abs(x)),
    "hardshrink": _hardshrink,
    "softshrink": lambda x, lambd=0.5: jnp.sign(x) * jax.nn.relu(jnp.abs(x) - lambd),
    "logit special_logit": _logit,
}
_WIDE_ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "gelu": lambda x, approximate="none": jax.nn.gelu(
        x, approximate=approximate == "tanh"
    ),
    "silu": lambda x: x * jax.nn.sigmoid(x),
    "elu": _elu,
    "celu": lambda x, alpha=1: jnp.where(
        x > 0, x, jnp.expm1(jnp.where(x > 0, 0, x) / alpha) * alpha
    ),
    "selu": jax.nn.selu,
    "softplus": _softplus,
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "log_sigmoid": jax.nn.log_sigmoid,
}
aten_table(_ACTIVATIONS)
aten_table(_WIDE_ACTIVATIONS, in_float32)


@aten("prelu", "_prelu_kernel")
def _prelu(xp: Any, x: Array, weight: Array) -> Array:
    if weight.ndim == 1 and x.ndim > 1:
        weight = weight.reshape((-1, *[1] * (x.ndim - 2)))
    return jnp.where(x > 0, x, x * weight)


@aten("threshold")
def _threshold(xp: Any, x: Array, threshold: Any, value: Any) -> Array:
    return jnp.where(x > threshold, x, as_array(xp, value, np.dtype(x.dtype)))


@aten("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(xp: Any, x: Array, p: float, train: bool) -> Array:
    if train and p > 0:
        raise NotImplementedError(
            "a dropout in training mode draws random numbers, which differ from "
            "torch's; call module.eval(), or set its rate to 0"
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
        return in_float32(lambda _, x: function(x, dim))(xp, to_float(xp, x))

    aten(*names.split())(compute)


def safe_softmax(x: Array, dim: int) -> Array:
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
