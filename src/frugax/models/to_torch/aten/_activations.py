"""Convert torch's activation functions for `from_torch`."""

from typing import Any

from frugax.models.graph import op

from ._conversions import CONVERSIONS, aten, rank_of, register


@register("gelu")
def _gelu(x: Any, *, approximate: str = "none") -> Any:
    return op("gelu", approximate=approximate == "tanh")(x)


@register("hardtanh")
def _hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return op("clip", min=low, max=high)(x)


@register("leaky_relu")
def _leaky_relu(x: Any, slope: float = 0.01) -> Any:
    return op("leaky_relu", slope=slope)(x)


@register("elu")
def _elu(
    x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Any:
    if scale == input_scale == 1:
        return op("elu", alpha=alpha)(x)
    return op("where")(x > 0, x * scale, op("expm1")(x * input_scale) * (alpha * scale))


@register("celu")
def _celu(x: Any, alpha: float = 1.0) -> Any:
    return op("celu", alpha=alpha)(x)


@register("softplus")
def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    soft = op("softplus")(x * beta) / beta
    return op("where")(x * beta > threshold, x, soft)


@register("prelu")
def _prelu(x: Any, weight: Any) -> Any:
    row = op("reshape", shape=(-1, *[1] * (rank_of(x) - 2)))(weight)
    return op("where")(x > 0, x, op("multiply")(x, row))


@register("glu")
def _glu(x: Any, dim: int = -1) -> Any:
    return op("glu", axis=dim)(x)


@register("softmax.int", "_softmax", "log_softmax.int", "_log_softmax")
def _softmax(x: Any, dim: int, *_: Any) -> Any:
    return op("softmax", axis=dim)(x)


for _target in (aten.log_softmax.int, aten._log_softmax.default):
    CONVERSIONS[_target] = lambda x, dim, *_: op("log_softmax", axis=dim)(x)


@register("dropout", "feature_dropout", "alpha_dropout")
def _dropout(x: Any, rate: float, train: Any) -> Any:
    return x  # traced in evaluation mode


@register("softsign")
def _softsign(x: Any) -> Any:
    return op("softsign")(x)


@register("threshold")
def _threshold(x: Any, least: float, value: float) -> Any:
    return op("where")(op("greater")(x, least), x, value)


@register("hardshrink")
def _hardshrink(x: Any, bound: float = 0.5) -> Any:
    return op("where")(op("greater")(op("absolute")(x), bound), x, 0.0)


@register("softshrink")
def _softshrink(x: Any, bound: float = 0.5) -> Any:
    return op("multiply")(op("sign")(x), op("relu")(op("absolute")(x) - bound))
