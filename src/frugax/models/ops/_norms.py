"""Linear maps and normalisations, over the last axis unless said otherwise.

Statistics of float16 and bfloat16 are taken in float32.
"""

from typing import Any

from ._table import op


@op(promote="float")
def linear(xp: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """input W^T + bias: (..., in) by a weight of (out, in) to (..., out)."""
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
    batch, *space, channels = input.shape
    if groups < 1 or channels % groups:
        raise ValueError(
            f"group_norm: {channels} channels cannot be divided into {groups} groups."
        )
    split = (batch, *space, groups, channels // groups)
    axes = (*range(1, len(space) + 1), len(space) + 2)
    x = xp.reshape(xp.widened(input), split)
    x = x - xp.mean(x, axis=axes, keepdims=True)
    x = x * xp.rsqrt(xp.mean(x * x, axis=axes, keepdims=True) + epsilon)
    return _affine(xp, xp.reshape(x, (batch, *space, channels)), weight, bias, input)


@op(promote="float")
def instance_norm(
    xp: Any, input: Any, weight: Any = None, bias: Any = None, *, epsilon: float = 1e-5
) -> Any:
    """Each channel of each example: zero mean and unit variance over space.

    The input is (batch, *space, channels); weight and bias are (channels,).
    Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.
    """
    axes = tuple(range(1, len(input.shape) - 1))
    x = xp.widened(input)
    x = x - xp.mean(x, axis=axes, keepdims=True)
    x = x * xp.rsqrt(xp.mean(x * x, axis=axes, keepdims=True) + epsilon)
    return _affine(xp, x, weight, bias, input)


@op(promote="none", outputs=("output", "new_mean", "new_variance"))
def batch_norm(
    xp: Any,
    input: Any,
    mean: Any,
    variance: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    inference: bool = False,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> Any:
    """Each channel: zero mean and unit variance over the batch and over space.

    The input is (..., channels), all others (channels,). In inference `mean` and
    `variance` are used as they are and come out unchanged. Otherwise those of the
    batch are used, and what comes out has moved towards them by a share of `momentum`;
    the variance to the unbiased one, as in torch. No gradient flows into the new ones.
    Ioffe & Szegedy 2015, arXiv:1502.03167.
    """
    x = xp.widened(input)
    rank = len(x.shape)
    wide = lambda row: xp.reshape(xp.cast_like(row, x), (1,) * (rank - 1) + row.shape)
    if inference:
        x = (x - wide(mean)) * xp.rsqrt(wide(variance) + epsilon)
        return _affine(xp, x, weight, bias, input), mean, variance
    axes = tuple(range(rank - 1))
    of_batch = xp.mean(x, axis=axes, keepdims=True)
    x = x - of_batch
    spread = xp.mean(x * x, axis=axes, keepdims=True)
    x = x * xp.rsqrt(spread + epsilon)
    unbiased = spread * xp.unbiased_factor(x, axes)
    moved = lambda old, new: xp.cast_like(
        wide(old) * (1.0 - momentum) + xp.stop_gradient(new) * momentum, old
    )
    new_mean = xp.reshape(moved(mean, of_batch), mean.shape)
    new_variance = xp.reshape(moved(variance, unbiased), variance.shape)
    return _affine(xp, x, weight, bias, input), new_mean, new_variance


def _affine(xp: Any, x: Any, weight: Any, bias: Any, like: Any) -> Any:
    """X times weight plus bias along the last axis, in the dtype of `like`."""
    row = (1,) * (len(x.shape) - 1) + (-1,)
    if weight is not None:
        x = x * xp.reshape(xp.cast_like(weight, x), row)
    if bias is not None:
        x = x + xp.reshape(xp.cast_like(bias, x), row)
    return xp.cast_like(x, like)
