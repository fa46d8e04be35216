"""Converters from operations of torch's ATen library to ops, for `from_torch`.

Data are channels first in torch; convolutions and pools move the channels to the end
and back, which XLA makes part of its layouts.
"""

# ruff: noqa: FBT002 - the signatures are torch's own

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from frugax.models.graph import Connection, op

CONVERSIONS: dict[Any, Callable[..., Any]] = {}
aten = torch.ops.aten


class Traced(threading.local):
    """What torch traced of the connections of the module that is being imported.

    Models infer shapes when they are compiled, but some conversions need them now.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        # With the connection, since an id may be used again.
        self.shapes: dict[int, tuple[Any, tuple[int, ...]]] = {}
        self.booleans: set[int] = set()


TRACED = Traced()


def note(value: Any, shape: tuple[int, ...], *, is_bool: bool) -> None:
    """Remember the shape that torch traced for a connection."""
    TRACED.shapes[id(value)] = (value, shape)
    if is_bool:
        TRACED.booleans.add(id(value))


def _is_bool(x: Any) -> bool:
    return id(x) in TRACED.booleans or getattr(x, "dtype", None) == np.bool_


def _shape(x: Any) -> tuple[int, ...]:
    if isinstance(x, Connection):
        return TRACED.shapes[id(x)][1]
    return tuple(np.shape(x))


def _convert(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a conversion for overloads such as `"add.Tensor"`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            packet, _, overload = name.partition(".")
            found = getattr(aten, packet, None)
            if found is not None and hasattr(found, overload or "default"):
                CONVERSIONS[getattr(found, overload or "default")] = function
        return function

    return register


def _same_op(name: str, *torch_names: str) -> None:
    """An op with the tensors of torch's in the same order, and nothing else."""
    _convert(*torch_names)(lambda *tensors, **_: op(name)(*tensors))


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
    _same_op(_ours or _theirs, _theirs)
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
    _same_op(_ours or _theirs, *(_theirs + o for o in _overloads))
_same_op("identity", "clone", "detach", "alias", "contiguous", "lift_fresh_copy")
_same_op("matmul", "matmul", "mm", "bmm", "mv")
_same_op("dot", "dot")
_same_op("linear", "linear")
_same_op("where", "where.self", "where.ScalarSelf", "where.ScalarOther")
_same_op("prelu", "_unused")


# --- arithmetic -------------------------------------------------------------------


@_convert("add.Tensor", "add.Scalar")
def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return op("add")(x, y if alpha == 1 else op("multiply")(y, alpha))


@_convert("sub.Tensor", "sub.Scalar")
def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return op("subtract")(x, y if alpha == 1 else op("multiply")(y, alpha))


@_convert("rsub.Scalar", "rsub.Tensor")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sub(y, x, alpha=alpha)


@_convert("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return op("floor_divide")(x, y)
    quotient = op("divide")(x, y)
    return op("trunc")(quotient) if rounding_mode == "trunc" else quotient


@_convert("addmm")
def _addmm(bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _add(op("multiply")(bias, beta), op("matmul")(x, y), alpha=alpha)


CONVERSIONS[aten.baddbmm.default] = _addmm


@_convert("einsum")
def _einsum(equation: str, tensors: Sequence[Any], **_: Any) -> Any:
    return op("einsum", equation=equation.replace(" ", ""))(*tensors)


@_convert("clamp", "clamp.Tensor")
def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else op("maximum")(x, min)
    return x if max is None else op("minimum")(x, max)


@_convert("clamp_min")
def _clamp_min(x: Any, min: Any) -> Any:
    return op("maximum")(x, min)


@_convert("to.dtype", "_to_copy", "to.dtype_layout", "to.device", "type_as")
def _to(x: Any, dtype: Any = None, *_: Any, **named: Any) -> Any:
    dtype = named.get("dtype", dtype)
    if not isinstance(dtype, torch.dtype):
        return x
    name = str(dtype).removeprefix("torch.")
    # The backend decides how wide numbers are.
    if dtype.is_floating_point:
        return op("multiply")(x, 1.0)
    return op("cast", dtype={"int64": "int32"}.get(name, name))(x)


@_convert("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return op("where")(mask, value, x)


# --- activations ------------------------------------------------------------------


@_convert("gelu")
def _gelu(x: Any, *, approximate: str = "none") -> Any:
    return op("gelu", approximate=approximate == "tanh")(x)


@_convert("hardtanh")
def _hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return op("clip", min=low, max=high)(x)


@_convert("leaky_relu")
def _leaky_relu(x: Any, slope: float = 0.01) -> Any:
    return op("leaky_relu", slope=slope)(x)


@_convert("elu")
def _elu(
    x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Any:
    if scale == input_scale == 1:
        return op("elu", alpha=alpha)(x)
    return op("where")(x > 0, x * scale, op("expm1")(x * input_scale) * (alpha * scale))


@_convert("celu")
def _celu(x: Any, alpha: float = 1.0) -> Any:
    return op("celu", alpha=alpha)(x)


@_convert("softplus")
def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    soft = op("softplus")(x * beta) / beta
    return op("where")(x * beta > threshold, x, soft)


@_convert("prelu")
def _prelu(x: Any, weight: Any) -> Any:
    row = op("reshape", shape=(-1, *[1] * (_rank(x) - 2)))(weight)
    return op("where")(x > 0, x, op("multiply")(x, row))


@_convert("glu")
def _glu(x: Any, dim: int = -1) -> Any:
    return op("glu", axis=dim)(x)


@_convert("softmax.int", "_softmax", "log_softmax.int", "_log_softmax")
def _softmax(x: Any, dim: int, *_: Any) -> Any:
    return op("softmax", axis=dim)(x)


for _target in (aten.log_softmax.int, aten._log_softmax.default):
    CONVERSIONS[_target] = lambda x, dim, *_: op("log_softmax", axis=dim)(x)


@_convert("dropout", "feature_dropout", "alpha_dropout")
def _dropout(x: Any, rate: float, train: Any) -> Any:
    return x  # traced in evaluation mode


# --- products with windows --------------------------------------------------------


def _rank(x: Any) -> int:
    return len(_shape(x))


def _channels_last(x: Any, axes: int) -> Any:
    return op("moveaxis", source=-axes - 1, destination=-1)(x)


def _channels_first(x: Any, axes: int) -> Any:
    return op("moveaxis", source=-1, destination=-axes - 1)(x)


def _pairs(padding: Any, axes: int) -> Any:
    if isinstance(padding, str):
        return padding
    padding = list(padding) * (axes if len(padding) == 1 else 1)
    return tuple((p, p) for p in padding)


def _sizes(value: Any, axes: int) -> tuple[int, ...]:
    value = value if isinstance(value, (list, tuple)) else [value]
    return tuple(value) * (axes if len(value) == 1 else 1)


def _convolution(axes: int) -> Callable[..., Any]:
    def convert(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,),
        padding: Any = (0,),
        dilation: Any = (1,),
        groups: int = 1,
    ) -> Any:
        layer = op(
            f"conv{axes}d",
            stride=_sizes(stride, axes),
            padding=_pairs(padding, axes),
            dilation=_sizes(dilation, axes),
            groups=groups,
        )
        # torch's kernel is (out, in / groups, *window).
        kernel = op("transpose", axes=(*range(2, 2 + axes), 1, 0))(weight)
        return _channels_first(layer(_channels_last(x, axes), kernel, bias), axes)

    return convert


def _transposed(axes: int) -> Callable[..., Any]:
    def convert(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = (1,),
        padding: Any = (0,),
        output_padding: Any = (0,),
        groups: int = 1,
        dilation: Any = (1,),
    ) -> Any:
        layer = op(
            f"conv{axes}d_transpose",
            stride=_sizes(stride, axes),
            padding=_pairs(padding, axes),
            dilation=_sizes(dilation, axes),
            groups=groups,
            output_padding=_sizes(output_padding, axes),
        )
        # torch's is (in, out / groups, *window), ours (*window, out / groups, in).
        kernel = op("transpose", axes=(*range(2, 2 + axes), 1, 0))(weight)
        return _channels_first(layer(_channels_last(x, axes), kernel, bias), axes)

    return convert


def _max_pool(axes: int) -> Callable[..., Any]:
    def convert(
        x: Any,
        window: Any,
        stride: Any = (),
        padding: Any = (0,),
        dilation: Any = (1,),
        ceil_mode: object = False,
    ) -> Any:
        _refuse_ceil(ceil_mode)
        layer = op(
            f"max_pool{axes}d",
            window=_sizes(window, axes),
            stride=_sizes(stride or window, axes),
            padding=_pairs(padding, axes),
        )
        return _channels_first(layer(_channels_last(x, axes)), axes)

    return convert


def _avg_pool(axes: int) -> Callable[..., Any]:
    def convert(
        x: Any,
        window: Any,
        stride: Any = (),
        padding: Any = (0,),
        ceil_mode: object = False,
        count_include_pad: object = True,
        *_: Any,
    ) -> Any:
        _refuse_ceil(ceil_mode)
        layer = op(
            f"avg_pool{axes}d",
            window=_sizes(window, axes),
            stride=_sizes(stride or window, axes),
            padding=_pairs(padding, axes),
            count_padding=bool(count_include_pad),
        )
        return _channels_first(layer(_channels_last(x, axes)), axes)

    return convert


def _refuse_ceil(ceil_mode: Any) -> None:
    if ceil_mode:
        raise NotImplementedError("from_torch: a pool with ceil_mode=True.")


def _adaptive(axes: int, kind: str) -> Callable[..., Any]:
    def convert(x: Any, sizes: Any) -> Any:
        sizes = _sizes(sizes, axes)
        # One axis after the other; each piece is a slice, as lengths need not divide.
        for i, size in enumerate(sizes):
            axis = i - axes
            length = _length(x, axis)
            if size in (None, length):
                continue
            parts = []
            for n in range(size):
                low, high = n * length // size, -(-(n + 1) * length // size)
                piece = _slice(x, axis, low, high)
                parts.append(op(kind, axis=axis, keepdims=True)(piece))
            whole = parts[0] if len(parts) == 1 else op("concat", axis=axis)(*parts)
            x = _keep_shape(whole, x, axis, size)
        # The maximum comes with its places, which nothing but unpooling reads.
        return x if kind == "mean" else (x, None)

    return convert


for _axes in (1, 2):
    CONVERSIONS[getattr(aten, f"conv{_axes}d").default] = _convolution(_axes)
    CONVERSIONS[getattr(aten, f"conv{_axes}d").padding] = _convolution(_axes)
    _name = ("conv_transpose1d", "conv_transpose2d")[_axes - 1]
    _overload = ("default", "input")[_axes - 1]
    CONVERSIONS[getattr(getattr(aten, _name), _overload)] = _transposed(_axes)
    CONVERSIONS[getattr(aten, f"max_pool{_axes}d").default] = _max_pool(_axes)
    CONVERSIONS[getattr(aten, f"avg_pool{_axes}d").default] = _avg_pool(_axes)
    CONVERSIONS[getattr(aten, f"adaptive_avg_pool{_axes}d").default] = _adaptive(
        _axes, "mean"
    )
    CONVERSIONS[getattr(aten, f"adaptive_max_pool{_axes}d").default] = _adaptive(
        _axes, "max"
    )


# --- norms and embeddings ---------------------------------------------------------


@_convert("batch_norm")
def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    epsilon = rest[2] if isinstance(rest[0], bool) else rest[1]
    column = lambda v: op("reshape", shape=(-1, *[1] * (_rank(x) - 2)))(v)
    scale = op("rsqrt")(op("add")(var, epsilon))
    out = op("multiply")(op("subtract")(x, column(mean)), column(scale))
    out = out if weight is None else op("multiply")(out, column(weight))
    return out if bias is None else op("add")(out, column(bias))


# This form also gives the statistics, which nothing reads in evaluation mode.
CONVERSIONS[aten._native_batch_norm_legit_no_training.default] = lambda *args: (
    _batch_norm(*args),
    None,
    None,
)


def _normalize(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    centred = x - op("mean", axis=axes, keepdims=True)(x)
    var = op("mean", axis=axes, keepdims=True)(op("square")(centred))
    return centred * op("rsqrt")(var + epsilon)


@_convert("layer_norm")
def _layer_norm(
    x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    out = _normalize(x, tuple(range(-len(shape), 0)), eps)
    out = out if weight is None else op("multiply")(out, weight)
    return out if bias is None else op("add")(out, bias)


@_convert("rms_norm")
def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    axes = tuple(range(-len(shape), 0))
    mean = op("mean", axis=axes, keepdims=True)(op("square")(x))
    out = x * op("rsqrt")(
        mean + (torch.finfo(torch.float32).eps if eps is None else eps)
    )
    return out if weight is None else op("multiply")(out, weight)


@_convert("group_norm")
def _group_norm(
    x: Any,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    rank, shape = _rank(x), _shape(x)
    split = op("unflatten", sizes=(groups, -1), axis=1)(x)
    out = _normalize(split, tuple(range(2, rank + 1)), eps)
    out = op("reshape", shape=shape)(out)
    column = lambda v: op("reshape", shape=(-1, *[1] * (rank - 2)))(v)
    out = out if weight is None else op("multiply")(out, column(weight))
    return out if bias is None else op("add")(out, column(bias))


@_convert("instance_norm")
def _instance_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input: Any, *rest: Any
) -> Any:
    if not use_input:
        return _batch_norm(x, weight, bias, mean, var, False, *rest)
    rank = _rank(x)
    out = _normalize(x, tuple(range(2, rank)), rest[1])
    column = lambda v: op("reshape", shape=(-1, *[1] * (rank - 2)))(v)
    out = out if weight is None else op("multiply")(out, column(weight))
    return out if bias is None else op("add")(out, column(bias))


@_convert("embedding")
def _embedding(weight: Any, indices: Any, *_: Any) -> Any:
    return op("embedding")(indices, weight)


# --- attention and recurrence -----------------------------------------------------


@_convert("scaled_dot_product_attention")
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
    reads, seen = _shape(query)[-2], _shape(key)[-2]
    if enable_gqa:
        times = _shape(query)[-3] // _shape(key)[-3]
        key, value = (op("repeat", repeats=times, axis=-3)(v) for v in (key, value))
    size = _shape(query)[-1]
    scores = op("matmul")(query, op("swapaxes")(key)) * (scale or 1 / math.sqrt(size))
    if is_causal:
        mask = np.tril(np.ones((reads, seen), bool))
    if mask is not None:
        is_bool = _is_bool(mask)
        scores = (
            op("where")(mask, scores, -1e30) if is_bool else op("add")(scores, mask)
        )
    return op("matmul")(op("softmax")(scores), value)


def _recurrent(kind: str, gates: int) -> Callable[..., Any]:
    """Torch's stacked, bidirectional recurrence, whose weights come as one list."""

    def convert(
        x: Any,
        states: Any,
        weights: Sequence[Any],
        has_biases: Any,
        depth: int,
        dropout: float,
        train: Any,
        bidirectional: Any,
        batch_first: Any,
    ) -> Any:
        states = states if isinstance(states, list) else [states]
        x = x if batch_first else op("swapaxes", axis1=0, axis2=1)(x)
        per_layer, last = (4 if has_biases else 2), []
        for _ in range(depth):
            sides = []
            for reverse in (False, True)[: 1 + bool(bidirectional)]:
                number = len(last)
                own = weights[number * per_layer : (number + 1) * per_layer]
                wires: dict[str, Any] = {"weight": own[0], "hidden_weight": own[1]}
                if has_biases and kind == "gru":
                    wires |= {"bias": own[2], "hidden_bias": own[3]}
                elif has_biases:
                    wires["bias"] = op("add")(own[2], own[3])
                for port, state in zip(("state", "cell_state"), states, strict=False):
                    wires[port] = _select(state, 0, number)
                name, extra = kind, {}
                if kind.startswith("rnn_"):
                    name, extra = "rnn", {"activation": kind.removeprefix("rnn_")}
                output, *ends = op(name, reverse=reverse, **extra)(input=x, **wires)
                sides.append(output)
                last.append(ends)
            x = sides[0] if len(sides) == 1 else op("concat", axis=-1)(*sides)
        x = x if batch_first else op("swapaxes", axis1=0, axis2=1)(x)
        ends = [
            op("stack", axis=0)(*[one[i] for one in last]) for i in range(len(last[0]))
        ]
        return (x, *ends)

    return convert


CONVERSIONS[aten.lstm.input] = _recurrent("lstm", 4)
CONVERSIONS[aten.gru.input] = _recurrent("gru", 3)
CONVERSIONS[aten.rnn_tanh.input] = _recurrent("rnn_tanh", 1)
CONVERSIONS[aten.rnn_relu.input] = _recurrent("rnn_relu", 1)


# --- shapes -----------------------------------------------------------------------


def _length(x: Any, axis: int) -> int:
    return _shape(x)[axis]


def _keep_shape(new: Any, old: Any, axis: int, length: int) -> Any:
    shape = list(_shape(old))
    shape[axis] = length
    note(new, tuple(shape), is_bool=False)
    return new


@_convert("view", "reshape", "_unsafe_view", "view_copy")
def _reshape(x: Any, shape: Any) -> Any:
    return op("reshape", shape=tuple(shape))(x)


@_convert("flatten.using_ints")
def _flatten(x: Any, start: int = 0, end: int = -1) -> Any:
    rank = _rank(x)
    return op("flatten", start=start % rank, stop=end % rank + 1)(x)


@_convert("unflatten.int")
def _unflatten(x: Any, dim: int, sizes: Any) -> Any:
    return op("unflatten", sizes=tuple(sizes), axis=dim)(x)


@_convert("permute")
def _permute(x: Any, dims: Any) -> Any:
    return op("transpose", axes=tuple(d % len(dims) for d in dims))(x)


@_convert("transpose.int")
def _swap(x: Any, first: int, second: int) -> Any:
    return op("swapaxes", axis1=first, axis2=second)(x)


@_convert("t", "numpy_T")
def _t(x: Any) -> Any:
    return op("transpose")(x)


@_convert("unsqueeze")
def _unsqueeze(x: Any, dim: int) -> Any:
    return op("expand_dims", axis=dim)(x)


@_convert("squeeze.dim", "squeeze.dims", "squeeze")
def _squeeze(x: Any, dims: Any = None) -> Any:
    shape = _shape(x)
    dims = range(len(shape)) if dims is None else np.atleast_1d(dims).tolist()
    axes = tuple(d % len(shape) for d in dims if shape[d] == 1)
    return op("squeeze", axis=axes)(x) if axes else x


@_convert("expand")
def _expand(x: Any, sizes: Any, **_: Any) -> Any:
    return op("broadcast_to", shape=tuple(sizes))(x)


@_convert("repeat")
def _repeat(x: Any, times: Any) -> Any:
    return op("tile", reps=tuple(times))(x)


@_convert("repeat_interleave.self_int")
def _repeat_interleave(x: Any, times: int, dim: int | None = None) -> Any:
    return op("repeat", repeats=times, axis=dim)(x)


@_convert("cat", "concat")
def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    return op("concat", axis=dim)(*tensors)


@_convert("stack")
def _stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    return op("stack", axis=dim)(*tensors)


def _slice(x: Any, dim: int, start: Any, end: Any, step: int = 1) -> Any:
    full = ("slice", None, None, None)
    lead = dim if dim >= 0 else _rank(x) + dim
    return op("getitem", index=(*[full] * lead, ("slice", start, end, step)))(x)


@_convert("slice.Tensor")
def _slice_tensor(
    x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    end = None if end is not None and end > 2**31 else end
    return _slice(x, dim, start, end, step)


@_convert("select.int")
def _select(x: Any, dim: int, index: int) -> Any:
    full = ("slice", None, None, None)
    lead = dim if dim >= 0 else _rank(x) + dim
    return op("getitem", index=(*[full] * lead, index))(x)


@_convert("unbind.int")
def _unbind(x: Any, dim: int = 0) -> Any:
    return [_select(x, dim, i) for i in range(_length(x, dim))]


@_convert("split.Tensor", "chunk", "split_with_sizes", "split.sizes")
def _split(x: Any, size: Any, dim: int = 0) -> Any:
    length = _length(x, dim)
    sizes = size if isinstance(size, list) else [size] * (length // size)
    if sum(sizes) < length:
        sizes = [*sizes, length - sum(sizes)]
    ends = np.cumsum(sizes).tolist()
    return [_slice(x, dim, e - s, e) for s, e in zip(sizes, ends, strict=True)]


CONVERSIONS[aten.chunk.default] = lambda x, count, dim=0: _split(
    x, -(-_length(x, dim) // count), dim
)


@_convert("roll")
def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    axis = tuple(dims) or None
    return op("roll", shift=tuple(shifts) if axis else shifts[0], axis=axis)(x)


@_convert("flip")
def _flip(x: Any, dims: Any) -> Any:
    return op("flip", axis=tuple(dims))(x)


@_convert("pad", "constant_pad_nd")
def _pad(x: Any, widths: Any, mode: Any = "constant", value: Any = 0) -> Any:
    if not isinstance(mode, str):
        mode, value = "constant", mode
    pairs = list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (_rank(x) - len(pairs)) + pairs
    if any(w < 0 for pair in pairs for w in pair):
        for axis, (low, high) in enumerate(pairs):
            length = _length(x, axis)
            if low < 0 or high < 0:
                x = _slice(x, axis, max(-low, 0), length + min(high, 0))
        pairs = [(max(low, 0), max(high, 0)) for low, high in pairs]
    ours = {"replicate": "edge"}.get(mode, mode)
    return op("pad", widths=tuple(pairs), mode=ours, value=value or 0)(x)


@_convert("tril", "triu")
def _tril(x: Any, k: int = 0) -> Any:
    return op("tril", k=k)(x)


CONVERSIONS[aten.triu.default] = lambda x, k=0: op("triu", k=k)(x)


@_convert("index_select")
def _index_select(x: Any, dim: int, index: Any) -> Any:
    return op("take", axis=dim)(x, index)


@_convert("gather")
def _gather(x: Any, dim: int, index: Any) -> Any:
    return op("take_along_axis", axis=dim)(x, index)


@_convert("index.Tensor")
def _index(x: Any, indices: Sequence[Any]) -> Any:
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) == 1:
        return op("take", axis=used[0])(x, indices[used[0]])
    if used != list(range(used[0], used[-1] + 1)) or used[0] != 0:
        raise NotImplementedError("from_torch: an index of several separate axes.")
    # Several arrays in front: one index into the flattened axes.
    lengths = _shape(x)[: len(used)]
    flat: Any = indices[0]
    for index, length in zip(indices[1:], lengths[1:], strict=True):
        flat = op("add")(op("multiply")(flat, length), index)
    return op("take", axis=0)(op("flatten", start=0, stop=len(used))(x), flat)


@_convert("pixel_shuffle")
def _pixel_shuffle(x: Any, factor: int) -> Any:
    *batch, channels, height, width = _shape(x)
    c = channels // factor**2
    x = op("reshape", shape=(*batch, c, factor, factor, height, width))(x)
    n = len(batch)
    x = op("transpose", axes=(*range(n), n, n + 3, n + 1, n + 4, n + 2))(x)
    return op("reshape", shape=(*batch, c, height * factor, width * factor))(x)


@_convert("upsample_nearest2d.vec", "upsample_nearest2d")
def _upsample_nearest(x: Any, sizes: Any, *_: Any) -> Any:
    for axis, out in zip((-2, -1), _out_sizes(x, sizes, _), strict=True):
        length = _length(x, axis)
        index = (np.arange(out) * length // out).astype(np.int32)
        x = _keep_shape(op("take", axis=axis)(x, index), x, axis, out)
    return x


@_convert("upsample_bilinear2d.vec", "upsample_bilinear2d")
def _upsample_bilinear(x: Any, sizes: Any, align: Any, *rest: Any) -> Any:
    for axis, out in zip((-2, -1), _out_sizes(x, sizes, rest), strict=True):
        length = _length(x, axis)
        at = (np.arange(out) + 0.5) * length / out - 0.5
        if align:
            at = np.arange(out) * (length - 1) / max(out - 1, 1)
        at = np.clip(at, 0, length - 1)
        low = np.floor(at).astype(np.int32)
        share = (at - low).astype(np.float32)
        matrix = np.zeros((length, out), np.float32)
        matrix[low, np.arange(out)] += 1 - share
        matrix[np.minimum(low + 1, length - 1), np.arange(out)] += share
        moved = op("matmul")(op("moveaxis", source=axis, destination=-1)(x), matrix)
        x = _keep_shape(
            op("moveaxis", source=-1, destination=axis)(moved), x, axis, out
        )
    return x


def _out_sizes(x: Any, sizes: Any, rest: Sequence[Any]) -> list[int]:
    if sizes is not None:
        return list(sizes)
    scales = next(r for r in rest if isinstance(r, (list, tuple)))
    return [int(_length(x, a) * s) for a, s in zip((-2, -1), scales, strict=True)]


# --- reductions -------------------------------------------------------------------


def _reduction(name: str) -> Callable[..., Any]:
    def convert(x: Any, dims: Any = None, keepdim: object = False, **_: Any) -> Any:
        axis = None
        if dims is not None and np.size(dims):
            axis = tuple(np.atleast_1d(dims).tolist())
        return op(name, axis=axis, keepdims=bool(keepdim))(x)

    return convert


for _name, _ours in (
    ("mean", "mean"), ("mean.dim", "mean"), ("sum", "sum"), ("sum.dim_IntList", "sum"),
    ("amax", "max"), ("amin", "min"), ("max", "max"), ("min", "min"),
    ("any", "any"), ("any.dim", "any"), ("any.dims", "any"), ("all", "all"),
    ("all.dim", "all"), ("prod.dim_int", "prod"), ("logsumexp", "logsumexp"),
):  # fmt: skip
    _convert(_name)(_reduction(_ours))


@_convert("max.dim", "min.dim")
def _max_dim(x: Any, dim: int, keepdim: object = False) -> Any:
    keep = bool(keepdim)
    return op("max", axis=dim, keepdims=keep)(x), op("argmax", axis=dim, keepdims=keep)(
        x
    )


CONVERSIONS[aten.min.dim] = lambda x, dim, keepdim=False: (
    op("min", axis=dim, keepdims=bool(keepdim))(x),
    op("argmin", axis=dim, keepdims=bool(keepdim))(x),
)


@_convert("argmax", "argmin")
def _argmax(x: Any, dim: int | None = None, keepdim: object = False) -> Any:
    return op("argmax", axis=dim, keepdims=bool(keepdim))(x)


CONVERSIONS[aten.argmin.default] = lambda x, dim=None, keepdim=False: op(
    "argmin", axis=dim, keepdims=bool(keepdim)
)(x)


@_convert("var.correction")
def _var(
    x: Any, dims: Any = None, *, correction: Any = 1, keepdim: object = False
) -> Any:
    axis = None if dims is None else tuple(dims)
    return op("var", axis=axis, ddof=int(correction), keepdims=bool(keepdim))(x)


@_convert("std.correction")
def _std(*args: Any, **named: Any) -> Any:
    return op("sqrt")(_var(*args, **named))


CONVERSIONS[aten.var.dim] = lambda x, dims, unbiased=True, keepdim=False: _var(
    x, dims, correction=int(unbiased), keepdim=keepdim
)
CONVERSIONS[aten.std.dim] = lambda x, dims, unbiased=True, keepdim=False: _std(
    x, dims, correction=int(unbiased), keepdim=keepdim
)


@_convert("cumsum", "cumprod")
def _cumsum(x: Any, dim: int, **_: Any) -> Any:
    return op("cumsum", axis=dim)(x)


CONVERSIONS[aten.cumprod.default] = lambda x, dim, **_: op("cumprod", axis=dim)(x)


@_convert("linalg_vector_norm", "norm.ScalarOpt_dim")
def _norm(
    x: Any, ord: Any = 2, dims: Any = None, keepdim: object = False, **_: Any
) -> Any:
    axis = None if dims is None else tuple(np.atleast_1d(dims).tolist())
    return op("norm", ord=int(ord), axis=axis, keepdims=bool(keepdim))(x)


# --- new arrays -------------------------------------------------------------------


@_convert("zeros_like", "ones_like", "full_like")
def _zeros_like(x: Any, **_: Any) -> Any:
    return np.zeros(_shape(x), np.float32)


CONVERSIONS[aten.ones_like.default] = lambda x, **_: np.ones(_shape(x), np.float32)
CONVERSIONS[aten.full_like.default] = lambda x, value, **_: np.full(
    _shape(x), value, np.float32
)
CONVERSIONS[aten.new_zeros.default] = lambda x, size, **_: np.zeros(size, np.float32)
CONVERSIONS[aten.new_ones.default] = lambda x, size, **_: np.ones(size, np.float32)
CONVERSIONS[aten.new_full.default] = lambda x, size, value, **_: np.full(
    size, value, np.float32
)


@_convert("_assert_tensor_metadata", "sym_constrain_range_for_size")
def _nothing(*_: Any, **__: Any) -> None:
    return None
