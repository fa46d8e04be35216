"""Ops for linear maps and normalisations, over the last axis unless stated otherwise.

Statistics of float16 and bfloat16 are computed in float32.
"""

import math
from typing import Any

from jaxtyping import Shaped

from ._table import op

Array = Shaped[Any, "*batch channels"]
Row = Shaped[Any, " channels"]  # one number for each channel


@op(promote="float")
def linear(
    xp: Any,
    input: Shaped[Any, "*batch in"],
    weight: Shaped[Any, "out in"],
    bias: Shaped[Any, " out"] | None = None,
) -> Shaped[Any, "*batch out"]:
    """`input` W^T plus bias, with the weight W laid out as in torch."""
    return xp.linear(input, weight, bias)


@op(promote="float")
def layer_norm(
    xp: Any,
    input: Array,
    weight: Row | None = None,
    bias: Row | None = None,
    *,
    epsilon: float = 1e-5,
) -> Array:
    """Zero mean and unit variance along the last axis, times weight plus bias.

    Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """
    return xp.layer_norm(input, weight, bias, epsilon)


@op(promote="float")
def rms_norm(
    xp: Any, input: Array, weight: Row | None = None, *, epsilon: float = 1e-6
) -> Array:
    """Unit mean square along the last axis, times weight.

    Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    # The mean stays: the paper finds that re-scaling matters and re-centring does not.
    return xp.rms_norm(input, weight, epsilon)


@op(promote="float")
def group_norm(
    xp: Any,
    input: Array,
    weight: Row | None = None,
    bias: Row | None = None,
    *,
    groups: int,
    epsilon: float = 1e-5,
) -> Array:
    """Each group of channels of each example: zero mean, unit variance.

    The input is (batch, *space, channels); weight and bias are (channels,).
    Wu & He 2018, arXiv:1803.08494.

    Raises:
        ValueError: the channels cannot be divided into that many groups.
    """
    channels = input.shape[-1]
    if groups < 1 or channels % groups:
        raise ValueError(
            f"group_norm: {channels} channels cannot be divided into {groups} groups."
        )
    axes = tuple(range(1, len(input.shape) - 1))
    _require_several(
        "group_norm", (*input.shape[1:-1], channels // groups), input.shape
    )
    # Each example has its own statistics, so training and inference agree at any batch
    # size.
    return _normalise(xp, input, weight, bias, epsilon, axes, groups)[0]


@op(promote="float")
def instance_norm(
    xp: Any,
    input: Array,
    weight: Row | None = None,
    bias: Row | None = None,
    *,
    epsilon: float = 1e-5,
) -> Array:
    """Each channel of each example: zero mean and unit variance over space.

    The input is (batch, *space, channels); weight and bias are (channels,).
    Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.
    """
    _require_several("instance_norm", input.shape[1:-1], input.shape)
    # A group norm with one group for each channel.
    axes = tuple(range(1, len(input.shape) - 1))
    return _normalise(xp, input, weight, bias, epsilon, axes)[0]


@op(outputs=("output", "new_running_mean", "new_running_var"))
def batch_norm(
    xp: Any,
    input: Array,
    running_mean: Row,
    running_var: Row,
    weight: Row | None = None,
    bias: Row | None = None,
    *,
    inference: bool = False,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> tuple[Array, Row, Row]:
    """Each channel: zero mean and unit variance over the batch and over space.

    At inference `running_mean` and `running_var` are used, and returned unchanged.
    Otherwise the statistics of the batch are used, and the running ones are returned
    moved towards them by the share `momentum`; the variance towards the unbiased one,
    as in torch. No gradient flows from them to the input.
    Ioffe & Szegedy 2015, arXiv:1502.03167.
    """
    # With fixed statistics it is an affine map: examples do not depend on each other.
    if inference:
        x = xp.widened(input)
        x = x - _row(xp, running_mean, x)
        scale = xp.rsqrt(_row(xp, running_var, x) + epsilon)
        return (
            _scale_and_shift(xp, x, scale, weight, bias, input),
            running_mean,
            running_var,
        )
    _require_several("batch_norm", input.shape[:-1], input.shape)
    axes = tuple(range(len(input.shape) - 1))
    out, mean, variance = _normalise(xp, input, weight, bias, epsilon, axes)
    # torch normalises by the biased variance, but keeps the unbiased one (Bessel).
    variance = variance * xp.unbiased_factor(mean, input.shape[:-1])

    def update(old: Any, new: Any) -> Any:
        kept = _row(xp, old, new) * (1.0 - momentum)
        kept = kept + xp.stop_gradient(new) * momentum
        return xp.cast_like(xp.reshape(kept, old.shape), old)

    return out, update(running_mean, mean), update(running_var, variance)


def _require_several(op: str, lengths: Any, shape: Any) -> None:
    """Refuse statistics of a single value, which would be normalised to 0."""
    if math.prod(lengths) == 1:
        raise ValueError(
            f"{op}: each mean would be of one value, in an input of shape "
            f"{tuple(shape)}; give more examples or positions."
        )


def _normalise(
    xp: Any,
    input: Any,
    weight: Any,
    bias: Any,
    epsilon: float,
    axes: tuple[int, ...],
    groups: int | None = None,
) -> tuple[Any, Any, Any]:
    """The input with zero mean and unit variance over `axes`; its mean and variance.

    With groups the statistics are those of groups of channels.
    """
    # Space is averaged first, and then the channels of a group: that takes 0.4-0.6 of
    # the time of splitting the channel axis of the data, which moves all of it.
    x = xp.widened(input)

    def mean_of(y: Any) -> Any:
        means = y
        if axes:
            means = xp.mean(y, axis=axes, keepdims=True)
        if groups is None:
            return means
        split = (*means.shape[:-1], groups, means.shape[-1] // groups)
        shared = xp.mean(xp.reshape(means, split), axis=-1, keepdims=True)
        return xp.reshape(xp.broadcast_to(shared, split), means.shape)

    mean = mean_of(x)
    x = x - mean
    # Two passes over the data: E[x^2] - E[x]^2 cancels where the mean is large.
    variance = mean_of(x * x)
    # Epsilon is inside of the root, as in the papers. Outside, the gradient of a
    # constant input would be infinite.
    scale = xp.rsqrt(variance + epsilon)
    return _scale_and_shift(xp, x, scale, weight, bias, input), mean, variance


def _scale_and_shift(
    xp: Any, x: Any, scale: Any, weight: Any, bias: Any, like: Any
) -> Any:
    """`x` times scale and weight plus bias, in the dtype of `like`."""
    if weight is not None:
        # The product of the small arrays first saves a pass over x and its gradient.
        scale = scale * _row(xp, weight, x)
    x = x * scale
    if bias is not None:
        x = x + _row(xp, bias, x)
    return xp.cast_like(x, like)


def _row(xp: Any, row: Any, like: Any) -> Any:
    """One number for each channel, with the rank and dtype of `like`."""
    row = xp.cast_like(row, like)
    return xp.reshape(row, (1,) * (len(like.shape) - 1) + row.shape)
