"""Convert torch's normalisation layers and embeddings for `from_torch`."""

from typing import Any

import torch

from frugax.models.graph import op

from ._conversions import CONVERSIONS, aten, rank_of, register, shape_of


@register("batch_norm")
def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    epsilon = rest[2] if isinstance(rest[0], bool) else rest[1]
    column = lambda v: op("reshape", shape=(-1, *[1] * (rank_of(x) - 2)))(v)
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


@register("_weight_norm")
def _weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    axes = tuple(a for a in range(rank_of(v)) if a != dim % rank_of(v))
    return v * (g / op("norm", axis=axes, keepdims=True)(v))


@register("layer_norm")
def _layer_norm(
    x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    out = _normalize(x, tuple(range(-len(shape), 0)), eps)
    out = out if weight is None else op("multiply")(out, weight)
    return out if bias is None else op("add")(out, bias)


@register("rms_norm")
def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    axes = tuple(range(-len(shape), 0))
    mean = op("mean", axis=axes, keepdims=True)(op("square")(x))
    out = x * op("rsqrt")(
        mean + (torch.finfo(torch.float32).eps if eps is None else eps)
    )
    return out if weight is None else op("multiply")(out, weight)


@register("group_norm")
def _group_norm(
    x: Any,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    rank, shape = rank_of(x), shape_of(x)
    split = op("unflatten", sizes=(groups, -1), axis=1)(x)
    out = _normalize(split, tuple(range(2, rank + 1)), eps)
    out = op("reshape", shape=shape)(out)
    column = lambda v: op("reshape", shape=(-1, *[1] * (rank - 2)))(v)
    out = out if weight is None else op("multiply")(out, column(weight))
    return out if bias is None else op("add")(out, column(bias))


@register("instance_norm")
def _instance_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input: Any, *rest: Any
) -> Any:
    if not use_input:
        return _batch_norm(x, weight, bias, mean, var, False, *rest)
    rank = rank_of(x)
    out = _normalize(x, tuple(range(2, rank)), rest[1])
    column = lambda v: op("reshape", shape=(-1, *[1] * (rank - 2)))(v)
    out = out if weight is None else op("multiply")(out, column(weight))
    return out if bias is None else op("add")(out, column(bias))


@register("embedding")
def _embedding(weight: Any, indices: Any, padding_idx: int = -1, *_: Any) -> Any:
    rows = op("embedding")(indices, weight)
    if padding_idx < 0:  # none
        return rows
    # torch reads the row of padding, and does not train it.
    is_padding = op("expand_dims", axis=-1)(op("equal")(indices, padding_idx))
    return op("where")(is_padding, op("stop_gradient")(rows), rows)
