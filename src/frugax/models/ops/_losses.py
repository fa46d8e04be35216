"""Losses: how wrong predictions are, and how large weights.

Reduction "mean" and "sum" give one number, "none" one for each example or element.
Losses of float16 and bfloat16 are float32. A class label that is none gives NaN, in
any library, compiled or not: when compiled, nothing can be raised.
"""

from typing import Any

from ._table import op


@op(promote="float")
def mse(xp: Any, input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """(input - target)^2, elementwise; the shapes must be equal."""
    error = _error(xp, "mse", input, target)
    return reduced(xp, "mse", error * error, reduction)


@op(promote="float")
def mae(xp: Any, input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """|input - target|, elementwise; the shapes must be equal."""
    return reduced(xp, "mae", xp.absolute(_error(xp, "mae", input, target)), reduction)


@op(promote="float")
def huber(
    xp: Any, input: Any, target: Any, *, delta: float = 1.0, reduction: str = "mean"
) -> Any:
    """Half the squared error up to `delta`, from there on linear; elementwise.

    Huber 1964, Ann. Math. Stat. 35:73-101.
    """
    size = xp.absolute(_error(xp, "huber", input, target))
    # Written with a minimum there is one branch, and no gradient of the other one.
    near = xp.minimum(size, delta)
    return reduced(xp, "huber", near * (size - 0.5 * near), reduction)


@op()
def cross_entropy(
    xp: Any,
    logits: Any,
    labels: Any,
    *,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Any:
    """-log softmax(logits)[label], in nats, over the last axis.

    The logits are (..., classes). Labels are classes, (...), or probabilities,
    (..., classes). A share of `label_smoothing` of each is spread over all classes.
    Examples labelled `ignore_index` count 0, and not in the mean; of none it is 0.

    Raises:
        ValueError: the labels' shape is neither of these, or `ignore_index` is given
            with probabilities.
    """
    z = xp.widened(logits)
    highest = xp.stop_gradient(xp.max(z, axis=-1, keepdims=True))
    total = xp.log(xp.sum(xp.exp(z - highest), axis=-1))
    if tuple(labels.shape) == tuple(logits.shape):
        if ignore_index is not None:
            raise ValueError(
                "cross_entropy: ignore_index needs labels that are classes, not "
                "probabilities; leave it out."
            )
        surprise = xp.expand_dims(total, -1) + (highest - z)
        right = xp.sum(xp.cast_like(labels, z) * surprise, axis=-1)
        valid = None
    else:
        _check_labels("cross_entropy", logits, labels)
        at, valid = _classes(xp, labels, ignore_index)
        # The differences of large numbers before the small `total`; and the label's
        # score from the logits, so that no log softmax of all classes is kept.
        right = total + (highest[..., 0] - xp.pick(z, at))
    if label_smoothing:
        spread = total + xp.mean(highest - z, axis=-1)
        right = right * (1.0 - label_smoothing) + spread * label_smoothing
    return _mean_of_valid(xp, "cross_entropy", right, valid, reduction)


@op()
def nll(
    xp: Any,
    log_probabilities: Any,
    labels: Any,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Any:
    """-log_probabilities[label] over the last axis; see `cross_entropy`."""
    _check_labels("nll", log_probabilities, labels)
    at, valid = _classes(xp, labels, ignore_index)
    right = -xp.pick(xp.widened(log_probabilities), at)
    return _mean_of_valid(xp, "nll", right, valid, reduction)


@op(promote="float")
def binary_cross_entropy(
    xp: Any, logits: Any, labels: Any, *, reduction: str = "mean"
) -> Any:
    """-log of sigmoid(logits)'s probability of the labels, 0 to 1; elementwise."""
    _same("binary_cross_entropy", logits, labels)
    z, y = xp.widened(logits), xp.widened(labels)
    return reduced(xp, "binary_cross_entropy", xp.softplus(z) - z * y, reduction)


@op(promote="float")
def kl_divergence(
    xp: Any, log_probabilities: Any, target: Any, *, reduction: str = "mean"
) -> Any:
    """Sum of target * (log target - log_probabilities) over the last axis, in nats.

    Both are (..., classes); the target is probabilities. The mean is over examples, as
    torch's "batchmean". Classes of probability 0 count 0.
    """
    _same("kl_divergence", log_probabilities, target)
    x, p = xp.widened(log_probabilities), xp.widened(target)
    # log 1 in place of log 0: so the gradient is a number as well.
    surprise = xp.log(xp.where(p > 0, p, 1.0)) - x
    terms = xp.where(p > 0, p * surprise, 0.0)
    return reduced(xp, "kl_divergence", xp.sum(terms, axis=-1), reduction)


@op(promote="float")
def hinge(xp: Any, scores: Any, labels: Any, *, reduction: str = "mean") -> Any:
    """max(0, 1 - label * score), elementwise; labels are -1 or 1."""
    _same("hinge", scores, labels)
    margin = 1.0 - xp.widened(scores) * xp.widened(labels)
    return reduced(xp, "hinge", xp.relu(margin), reduction)


@op(promote="float")
def cosine_distance(
    xp: Any, input: Any, target: Any, *, reduction: str = "mean", epsilon: float = 1e-8
) -> Any:
    """1 - cosine of the angle between vectors along the last axis.

    A length below `epsilon` counts as `epsilon`.
    """
    _same("cosine_distance", input, target)
    x, y = xp.widened(input), xp.widened(target)
    dot = lambda a, b: xp.sum(a * b, axis=-1)
    # The root of the larger one: that of 0 has no gradient.
    lengths = xp.maximum(dot(x, x), epsilon**2) * xp.maximum(dot(y, y), epsilon**2)
    cosine = dot(x, y) * xp.rsqrt(lengths)
    return reduced(xp, "cosine_distance", 1.0 - cosine, reduction)


@op(promote="float")
def l1_penalty(xp: Any, *inputs: Any) -> Any:
    """Sum of |x| over all elements of all inputs."""
    return _total(xp, [xp.sum(xp.absolute(xp.widened(x))) for x in inputs])


@op(promote="float")
def l2_penalty(xp: Any, *inputs: Any) -> Any:
    """Sum of x^2 over all elements of all inputs."""
    return _total(xp, [xp.sum(xp.widened(x) * xp.widened(x)) for x in inputs])


def reduced(xp: Any, op: str, losses: Any, reduction: str) -> Any:
    """Their mean, their sum, or as they are.

    Args:
        xp: the namespace.
        op: whose losses they are, for the error.
        losses: any shape.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: the reduction is none of these.
    """
    if reduction == "mean":
        return xp.mean(losses)
    if reduction == "sum":
        return xp.sum(losses)
    if reduction == "none":
        return losses
    raise ValueError(
        f'{op}: reduction must be "mean", "sum" or "none", not {reduction!r}.'
    )


def _mean_of_valid(xp: Any, op: str, losses: Any, valid: Any, reduction: str) -> Any:
    if valid is None:
        return reduced(xp, op, losses, reduction)
    losses = xp.where(valid, losses, 0.0)
    if reduction != "mean":
        return reduced(xp, op, losses, reduction)
    count = xp.sum(xp.cast_like(valid, losses))
    return xp.sum(losses) / xp.maximum(count, 1.0)


def _classes(xp: Any, labels: Any, ignore_index: int | None) -> tuple[Any, Any]:
    """Labels with class 0 for ignored ones, and which are not ignored."""
    if ignore_index is None:
        return labels, None
    valid = labels != ignore_index
    return xp.where(valid, labels, 0), valid


def _check_labels(op: str, scores: Any, labels: Any) -> None:
    if tuple(labels.shape) != tuple(scores.shape[:-1]):
        raise ValueError(
            f"{op}: scores of shape {tuple(scores.shape)} need labels of shape "
            f"{tuple(scores.shape[:-1])}, not {tuple(labels.shape)}."
        )


def _same(op: str, left: Any, right: Any) -> None:
    if tuple(left.shape) != tuple(right.shape):
        raise ValueError(
            f"{op}: the shapes must be equal, not {tuple(left.shape)} and "
            f"{tuple(right.shape)}; a loss does not broadcast."
        )


def _error(xp: Any, op: str, input: Any, target: Any) -> Any:
    _same(op, input, target)
    return xp.widened(input) - xp.widened(target)


def _total(xp: Any, sums: list[Any]) -> Any:
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total
