"""Linear maps and normalisations, over the last axis unless said otherwise.

Statistics of float16 and bfloat16 are taken in float32.
"""

from typing import Any

from ._table import op


@op(promote="float")
def linear(xp: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """Times W^T plus bias: (..., in) by a weight of (out, in) to (..., out)."""
    return xp.linear(input, weight, bias)


@op(promote="float")
def layer_norm(
    xp: Any, input: Any, weight: Any = None, bias: Any = None, *, epsilon: float = 1e-5
) -> Any:
    """Zero mean and unit variance along the last axis, times weight plus bias.

    Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """
    return xp.layer_norm(input, weight, bias, epsilon)


@op(promote="float")
def rms_norm(xp: Any, input: Any, weight: Any = None, *, epsilon: float = 1e-6) -> Any:
    """Unit mean square along the last axis, times weight.

    Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    return xp.rms_norm(input, weight, epsilon)


@op(promote="float")
def group_norm(
    xp: Any,
    input: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    groups: int,
    epsilon: float = 1e-5,
) -> Any:
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
    return _normalised(xp, input, weight, bias, epsilon, axes, groups)[0]


@op(promote="float")
def instance_norm(
    xp: Any, input: Any, weight: Any = None, bias: Any = None, *, epsilon: float = 1e-5
) -> Any:
    """Each channel of each example: zero mean and unit variance over space.

    The input is (batch, *space, channels); weight and bias are (channels,).
    Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.
    """
    axes = tuple(range(1, len(input.shape) - 1))
    return _normalised(xp, input, weight, bias, epsilon, axes)[0]


@op(outputs=("output", "new_running_mean", "new_running_var"))
def batch_norm(
    xp: Any,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    inference: bool = False,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> Any:
    """Each channel: zero mean and unit variance over the batch and over space.

    The input is (..., channels), all others (channels,). In inference `running_mean`
    and `running_var` are used as they are and come out unchanged. Otherwise those of
    the batch are used, and what comes out has moved towards them by a share of
    `momentum`; the variance to the unbiased one, as in torch. Of what comes out, no
    gradient flows to the input.
    Ioffe & Szegedy 2015, arXiv:1502.03167.
    """
    if inference:
        x = xp.widened(input)
        x = x - _row(xp, running_mean, x)
        scale = xp.rsqrt(_row(xp, running_var, x) + epsilon)
        return _scaled(xp, x, scale, weight, bias, input), running_mean, running_var
    axes = tuple(range(len(input.shape) - 1))
    out, mean, variance = _normalised(xp, input, weight, bias, epsilon, axes)
    variance = variance * xp.unbiased_factor(mean, input.shape[:-1])

    def moved(old: Any, new: Any) -> Any:
        kept = _row(xp, old, new) * (1.0 - momentum)
        kept = kept + xp.stop_gradient(new) * momentum
        return xp.cast_like(xp.reshape(kept, old.shape), old)

    return out, moved(running_mean, mean), moved(running_var, variance)


def _normalised(
    xp: Any,
    input: Any,
    weight: Any,
    bias: Any,
    epsilon: float,
    axes: tuple[int, ...],
    groups: int | None = None,
) -> tuple[Any, Any, Any]:
    """The input with zero mean and unit variance over `axes`; its mean and variance.

    With groups, over groups of channels as well. Axes of space are summed for each
    channel first, and channels then: 0.4-0.6 of the time of splitting the channels'
    axis, which takes them apart in memory.
    """
    x = xp.widened(input)

    def mean_of(y: Any) -> Any:
        means = xp.mean(y, axis=axes, keepdims=True) if axes else y
        if groups is None:
            return means
        split = (*means.shape[:-1], groups, means.shape[-1] // groups)
        shared = xp.mean(xp.reshape(means, split), axis=-1, keepdims=True)
        return xp.reshape(xp.broadcast_to(shared, split), means.shape)

    mean = mean_of(x)
    x = x - mean
    variance = mean_of(x * x)
    scale = xp.rsqrt(variance + epsilon)
    return _scaled(xp, x, scale, weight, bias, input), mean, variance


def _scaled(xp: Any, x: Any, scale: Any, weight: Any, bias: Any, like: Any) -> Any:
    """X times scale and weight plus bias, in the dtype of `like`."""
    if weight is not None:
        # The small product first: one pass less over x, and over its gradient.
        scale = scale * _row(xp, weight, x)
    x = x * scale
    if bias is not None:
        x = x + _row(xp, bias, x)
    return xp.cast_like(x, like)


def _row(xp: Any, row: Any, like: Any) -> Any:
    """One number for each channel, in the rank and dtype of `like`."""
    row = xp.cast_like(row, like)
    return xp.reshape(row, (1,) * (len(like.shape) - 1) + row.shape)
