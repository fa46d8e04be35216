"""Ops for losses of predictions, and for penalties on weights.

Reduction "mean" and "sum" give one number, "none" one for each example or element.
Losses of float16 and bfloat16 are float32. A class label out of range gives NaN on both
libraries, compiled or not, since a compiled program cannot raise.
"""

from typing import Any

from jaxtyping import Int, Shaped

from ._promote import require_whole
from ._settings import Epsilon, Fraction, Label, Positive, Reduction
from ._table import op

Array = Shaped[Any, "*shape"]
Loss = Shaped[Any, "..."]  # a number, or one for each example or element
Logits = Shaped[Any, "*batch classes"]
Labels = Int[Any, "*batch"]
ClassWeights = Shaped[Any, " classes"]


@op(promote="float")
def mse(xp: Any, input: Array, target: Array, *, reduction: Reduction = "mean") -> Loss:
    """(input - target)^2, elementwise; the shapes must be equal."""
    error = _error(xp, "mse", input, target)
    return reduce_losses(xp, "mse", error * error, reduction)


@op(promote="float")
def mae(xp: Any, input: Array, target: Array, *, reduction: Reduction = "mean") -> Loss:
    """|input - target|, elementwise; the shapes must be equal."""
    return reduce_losses(
        xp, "mae", xp.absolute(_error(xp, "mae", input, target)), reduction
    )


@op(promote="float")
def huber(
    xp: Any,
    input: Array,
    target: Array,
    *,
    reduction: Reduction = "mean",
    delta: Positive = 1.0,
) -> Loss:
    """Half the squared error up to `delta`, from there on linear; elementwise.

    With a `delta` of 1 it is the smooth L1 loss of Girshick 2015, arXiv:1504.08083.
    Huber 1964, Ann. Math. Stat. 35:73-101.
    """
    size = xp.absolute(_error(xp, "huber", input, target))
    # Both branches in one expression: `where` would also compute the gradient of the
    # branch that is not taken, which overflows for large errors.
    near = xp.minimum(size, delta)
    return reduce_losses(xp, "huber", near * (size - 0.5 * near), reduction)


@op()
def cross_entropy(
    xp: Any,
    input: Logits,
    target: Labels | Logits,
    weight: ClassWeights | None = None,
    *,
    reduction: Reduction = "mean",
    label_smoothing: Fraction = 0.0,
    ignore_index: Label | None = None,
) -> Loss:
    """-log softmax(input)[target], in nats, over the last axis.

    The input is logits, (..., classes). Targets are classes, (...), or probabilities,
    (..., classes). A share of `label_smoothing` of each is spread over all classes.
    With a `weight` for each class the mean over classes is weighted. Examples of class
    `ignore_index` count 0, and not in the mean; of none it is 0.

    Raises:
        ValueError: the shapes do not fit, or `ignore_index` meets probabilities.
    """
    # Of logits: softmax and logarithm join to a log-sum-exp, while the logarithm of a
    # rounded probability can be -inf.
    z = xp.widened(input)
    # Subtracting the largest logit keeps exp from overflowing. It cancels in the loss,
    # so its gradient is 0 and need not be computed.
    highest = xp.stop_gradient(xp.max(z, axis=-1, keepdims=True))
    total = xp.log(xp.sum(xp.exp(z - highest), axis=-1))
    weight = _class_weights(xp, "cross_entropy", input, weight)
    if _shape(target) == tuple(input.shape):
        if ignore_index is not None:
            raise ValueError(
                "cross_entropy: ignore_index needs labels that are classes, not "
                "probabilities; leave it out."
            )
        surprise = xp.expand_dims(total, -1) + (highest - z)
        if weight is not None:
            surprise = xp.multiply(surprise, weight)
        right = xp.sum(xp.cast_like(target, z) * surprise, axis=-1)
        valid = counts = None
    else:
        _check_labels(xp, "cross_entropy", input, target)
        at, valid = _classes(xp, target, ignore_index)
        # The difference of two large numbers first, which loses no digits of the small
        # `total`. The label's score is picked from the logits, so that the backward
        # pass need not keep a log softmax of all classes.
        right = total + (highest[..., 0] - xp.pick(z, at))
        right, counts = _weigh(xp, right, at, valid, weight)
    if label_smoothing:
        # The cross-entropy against the uniform distribution (Szegedy et al. 2016,
        # arXiv:1512.00567, sec. 7).
        if weight is None:
            spread = total + xp.mean(highest - z, axis=-1)
        else:
            surprise = xp.expand_dims(total, -1) + (highest - z)
            spread = xp.mean(xp.multiply(surprise, weight), axis=-1)
        right = right * (1.0 - label_smoothing) + spread * label_smoothing
        if valid is not None:
            right = xp.where(valid, right, 0.0)
    return _weighted_mean(xp, "cross_entropy", right, counts, reduction)


@op()
def nll(
    xp: Any,
    input: Logits,
    target: Labels,
    weight: ClassWeights | None = None,
    *,
    reduction: Reduction = "mean",
    ignore_index: Label | None = None,
) -> Loss:
    """-input[target] of log probabilities over the last axis; see `cross_entropy`."""
    _check_labels(xp, "nll", input, target)
    at, valid = _classes(xp, target, ignore_index)
    weight = _class_weights(xp, "nll", input, weight)
    right = -xp.pick(xp.widened(input), at)
    right, counts = _weigh(xp, right, at, valid, weight)
    return _weighted_mean(xp, "nll", right, counts, reduction)


@op(promote="float")
def binary_cross_entropy(
    xp: Any,
    input: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    *,
    reduction: Reduction = "mean",
) -> Loss:
    """-log of sigmoid(input)'s probability of the targets, 0 to 1; elementwise.

    Losses are multiplied by `weight`, and the part of positive targets by `pos_weight`;
    both broadcast. The mean divides by the number of losses. The input is logits, as in
    torch's BCEWithLogitsLoss; its BCELoss takes probabilities.
    """
    _same("binary_cross_entropy", input, target)
    z, y = xp.widened(input), xp.widened(target)
    # -y log s - (1 - y) log(1 - s) for s = sigmoid(z), simplified: s itself would round
    # to 0 or 1, whose logarithms are infinite.
    if pos_weight is None:
        losses = xp.softplus(z) - z * y
    else:
        scale = 1.0 + xp.multiply(xp.widened(pos_weight) - 1.0, y)
        losses = (1.0 - y) * z + scale * xp.softplus(-z)
    if weight is not None:
        losses = xp.multiply(losses, xp.widened(weight))
    return reduce_losses(xp, "binary_cross_entropy", losses, reduction)


@op(promote="float")
def kl_divergence(
    xp: Any,
    log_probabilities: Logits,
    target: Logits,
    *,
    reduction: Reduction = "mean",
) -> Loss:
    """Sum of target * (log target - log_probabilities) over the last axis, in nats.

    Both are (..., classes); the target is probabilities. The mean is over examples, as
    torch's "batchmean". Classes of probability 0 count 0.
    """
    _same("kl_divergence", log_probabilities, target)
    x, p = xp.widened(log_probabilities), xp.widened(target)
    # log 1 instead of log 0: the gradient of a branch that `where` drops is multiplied
    # by 0, and 0 * inf is NaN.
    surprise = xp.log(xp.where(p > 0, p, 1.0)) - x
    terms = xp.where(p > 0, p * surprise, 0.0)
    return reduce_losses(xp, "kl_divergence", xp.sum(terms, axis=-1), reduction)


@op(promote="float")
def hinge(
    xp: Any, scores: Array, labels: Array, *, reduction: Reduction = "mean"
) -> Loss:
    """max(0, 1 - label * score), elementwise; labels are -1 or 1."""
    _same("hinge", scores, labels)
    margin = 1.0 - xp.widened(scores) * xp.widened(labels)
    return reduce_losses(xp, "hinge", xp.relu(margin), reduction)


@op(promote="float")
def cosine_distance(
    xp: Any,
    input: Array,
    target: Array,
    *,
    reduction: Reduction = "mean",
    epsilon: Epsilon = 1e-8,  # as in torch.nn.CosineSimilarity
) -> Loss:
    """1 - cosine of the angle between vectors along the last axis.

    A length below `epsilon` counts as `epsilon`.
    """
    _same("cosine_distance", input, target)
    x, y = xp.widened(input), xp.widened(target)
    dot = lambda a, b: xp.sum(a * b, axis=-1)
    # The maximum is under the root: the gradient of sqrt at 0 is infinite.
    lengths = xp.maximum(dot(x, x), epsilon**2) * xp.maximum(dot(y, y), epsilon**2)
    cosine = dot(x, y) * xp.rsqrt(lengths)
    return reduce_losses(xp, "cosine_distance", 1.0 - cosine, reduction)


@op(promote="float")
def l1_penalty(xp: Any, *inputs: Loss) -> Loss:
    """Sum of |x| over all elements of all inputs."""
    return _total(xp, [xp.sum(xp.absolute(xp.widened(x))) for x in inputs])


@op(promote="float")
def l2_penalty(xp: Any, *inputs: Loss) -> Loss:
    """Sum of x^2 over all elements of all inputs."""
    return _total(xp, [xp.sum(xp.widened(x) * xp.widened(x)) for x in inputs])


def reduce_losses(xp: Any, op: str, losses: Any, reduction: str) -> Any:
    """Reduce losses to their mean or sum, or return them as they are."""
    if reduction == "mean":
        return xp.mean(losses)
    if reduction == "sum":
        return xp.sum(losses)
    if reduction == "none":
        return losses
    raise ValueError(
        f'{op}: reduction must be "mean", "sum" or "none", not {reduction!r}.'
    )


def _weigh(xp: Any, losses: Any, at: Any, valid: Any, weight: Any) -> tuple[Any, Any]:
    """Losses times the weights of their classes, and how much each counts in a mean."""
    if valid is None and weight is None:
        return losses, None
    counts = xp.ones(losses.shape, xp.dtype_of(losses), like=losses)
    if weight is not None:
        rows = xp.broadcast_to(weight, (*at.shape, weight.shape[0]))
        counts = xp.pick(rows, at)
        losses = losses * counts
    if valid is not None:
        # Selected and not multiplied: 0 times NaN is NaN.
        losses, counts = xp.where(valid, losses, 0.0), xp.where(valid, counts, 0.0)
    return losses, counts


def _weighted_mean(xp: Any, op: str, losses: Any, counts: Any, reduction: str) -> Any:
    if counts is None or reduction != "mean":
        return reduce_losses(xp, op, losses, reduction)
    # A batch of ignored examples alone has the mean 0, where torch gives NaN.
    total = xp.sum(counts)
    return xp.sum(losses) / xp.where(total > 0, total, 1.0)


def _class_weights(xp: Any, op: str, scores: Any, weight: Any) -> Any:
    if weight is None:
        return None
    if _shape(weight) != (scores.shape[-1],):
        raise ValueError(
            f"{op}: weight must be one number for each of {scores.shape[-1]} classes, "
            f"not of shape {_shape(weight)}."
        )
    return xp.widened(weight)


def _classes(xp: Any, labels: Any, ignore_index: int | None) -> tuple[Any, Any]:
    """Labels with class 0 for ignored examples, and a mask of the others."""
    if ignore_index is None:
        return labels, None
    valid = labels != ignore_index
    # Class 0 always exists, while -100, the usual label for padding, would read NaN.
    return xp.where(valid, labels, 0), valid


def _check_labels(xp: Any, op: str, scores: Any, labels: Any) -> None:
    if _shape(labels) != tuple(scores.shape[:-1]):
        raise ValueError(
            f"{op}: scores of shape {tuple(scores.shape)} need labels of shape "
            f"{tuple(scores.shape[:-1])}, not {_shape(labels)}."
        )
    require_whole(xp, op, "target", labels)


def _same(op: str, left: Any, right: Any) -> None:
    # (n, 1) and (n,) broadcast to (n, n): the loss would compare each prediction with
    # all targets, and train towards their mean.
    first, second = _shape(left), _shape(right)
    if first != second:
        raise ValueError(
            f"{op}: the shapes must be equal, not {first} and {second}; a loss does "
            "not broadcast."
        )


def _shape(array: Any) -> tuple[Any, ...]:
    """The shape of an array, or of a number."""
    return tuple(getattr(array, "shape", ()))


def _error(xp: Any, op: str, input: Any, target: Any) -> Any:
    _same(op, input, target)
    return xp.widened(input) - xp.widened(target)


def _total(xp: Any, sums: list[Any]) -> Any:
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total
