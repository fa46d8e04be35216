"""Convert torch's arithmetic, comparisons and casts for `from_torch`."""

from collections.abc import Sequence
from typing import Any

import torch

from frugax.models.graph import op

from ._conversions import CONVERSIONS, aten, register, same_op

for _name in [
    "abs:absolute",
    "acos:arccos",
    "acosh:arccosh",
    "asin:arcsin",
    "asinh:arcsinh",
    "atan:arctan",
    "atanh:arctanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "neg:negative",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "log_sigmoid:log_sigmoid",
    "logical_not",
    "bitwise_not:logical_not",
    "mish",
    "selu",
    "hardswish:hard_swish",
    "hardsigmoid:hard_sigmoid",
]:
    _theirs, _, _ours = _name.partition(":")
    same_op(_ours or _theirs, _theirs)
for _name in [
    "div:divide",
    "mul:multiply",
    "maximum",
    "minimum",
    "pow:power",
    "remainder",
    "eq:equal",
    "ne:not_equal",
    "lt:less",
    "le:less_equal",
    "gt:greater",
    "ge:greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and:logical_and",
    "bitwise_or:logical_or",
    "floor_divide",
    "atan2:arctan2",
]:
    _theirs, _, _ours = _name.partition(":")
    _overloads = ("", ".Tensor", ".Scalar", ".Tensor_Tensor", ".Tensor_Scalar")
    same_op(_ours or _theirs, *(_theirs + o for o in _overloads))
same_op("identity", "clone", "detach", "alias", "contiguous", "lift_fresh_copy")
same_op("matmul", "matmul", "mm", "bmm", "mv")
same_op("dot", "dot", "vdot")
same_op("linear", "linear")
same_op("where", "where.self", "where.ScalarSelf", "where.ScalarOther")
same_op("prelu", "_unused")


@register("add.Tensor", "add.Scalar")
def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return op("add")(x, y if alpha == 1 else op("multiply")(y, alpha))


@register("sub.Tensor", "sub.Scalar")
def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return op("subtract")(x, y if alpha == 1 else op("multiply")(y, alpha))


@register("rsub.Scalar", "rsub.Tensor")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sub(y, x, alpha=alpha)


@register("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return op("floor_divide")(x, y)
    quotient = op("divide")(x, y)
    return op("trunc")(quotient) if rounding_mode == "trunc" else quotient


@register("addmm")
def _addmm(bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _add(op("multiply")(bias, beta), op("matmul")(x, y), alpha=alpha)


CONVERSIONS[aten.baddbmm.default] = _addmm


@register("einsum")
def _einsum(equation: str, tensors: Sequence[Any], **_: Any) -> Any:
    return op("einsum", equation=equation.replace(" ", ""))(*tensors)


@register("clamp", "clamp.Tensor")
def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else op("maximum")(x, min)
    return x if max is None else op("minimum")(x, max)


@register("clamp_min")
def _clamp_min(x: Any, min: Any) -> Any:
    return op("maximum")(x, min)


@register("to.dtype", "_to_copy", "to.dtype_layout", "to.device", "type_as")
def _to(x: Any, dtype: Any = None, *_: Any, **named: Any) -> Any:
    dtype = named.get("dtype", dtype)
    if not isinstance(dtype, torch.dtype):
        return x
    name = str(dtype).removeprefix("torch.")
    # The backend decides how wide numbers are.
    if dtype.is_floating_point:
        return op("multiply")(x, 1.0)
    return op("cast", dtype={"int64": "int32"}.get(name, name))(x)


@register("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return op("where")(mask, value, x)


@register("addcmul")
def _addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return op("add")(x, op("multiply")(op("multiply")(y, z), value))


@register("addcdiv")
def _addcdiv(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return op("add")(x, op("multiply")(op("divide")(y, z), value))


@register("lerp.Scalar", "lerp.Tensor")
def _lerp(x: Any, y: Any, share: Any) -> Any:
    return op("add")(x, op("multiply")(op("subtract")(y, x), share))
