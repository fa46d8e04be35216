"""Ops for metrics of predictions, as float32 numbers; most have no useful gradient."""

from typing import Any

from jaxtyping import Shaped

from ._losses import Array, Labels, Logits, cross_entropy
from ._settings import Count, Label
from ._table import op

Scalar = Shaped[Any, ""]


@op()
def accuracy(
    xp: Any, logits: Logits, labels: Labels, *, ignore_index: Label | None = None
) -> Scalar:
    """Share of examples whose highest score is that of the right class.

    Examples labelled `ignore_index` do not count; the accuracy of no examples is 0.
    """
    best = xp.argmax(logits, axis=-1)
    # Labels may be narrower than the indices of the backend.
    right = best == xp.cast_like(labels, best)
    return _share_right(xp, right, labels, ignore_index)


@op()
def top_k_accuracy(
    xp: Any,
    logits: Logits,
    labels: Labels,
    *,
    k: Count = 5,
    ignore_index: Label | None = None,
) -> Scalar:
    """Share of examples whose right class is among the k highest scores.

    Of equal scores that of the lower class ranks first, as in `accuracy`. A label out
    of range is never right.
    """
    # The rank is counted by comparisons, without sorting the scores of all classes.
    score = xp.expand_dims(xp.pick(xp.widened(logits), labels), -1)
    all_scores = xp.widened(logits)
    classes = xp.arange(logits.shape[-1], like=logits)
    row = (1,) * (len(logits.shape) - 1) + (-1,)
    own = xp.cast_like(xp.expand_dims(labels, -1), classes)
    lower = xp.reshape(classes, row) < own
    ahead = (all_scores > score) | ((all_scores == score) & lower)
    rank = xp.sum(xp.cast_like(ahead, all_scores), axis=-1)
    # A label out of range reads NaN, which is not equal to itself.
    right = (rank < k) & (score[..., 0] == score[..., 0])
    return _share_right(xp, right, labels, ignore_index)


@op()
def precision(
    xp: Any, scores: Array, labels: Array, *, threshold: float = 0.0
) -> Scalar:
    """Share of label 1 among scores above the threshold; 0 without any.

    Labels are 0 and 1; a threshold of 0 suits logits.
    """
    found, claimed, _ = _counts(xp, "precision", scores, labels, threshold)
    # Counts are whole numbers, so a divisor of at least 1 changes nothing but 0 / 0.
    return found / xp.maximum(claimed, 1.0)


@op()
def recall(xp: Any, scores: Array, labels: Array, *, threshold: float = 0.0) -> Scalar:
    """Share of label 1 that scores above the threshold; 0 without any."""
    found, _, there = _counts(xp, "recall", scores, labels, threshold)
    return found / xp.maximum(there, 1.0)


@op()
def f1(xp: Any, scores: Array, labels: Array, *, threshold: float = 0.0) -> Scalar:
    """Harmonic mean of `precision` and `recall`; 0 if nothing was found."""
    # Of one batch: the mean over batches is not the F1 of all examples.
    found, claimed, there = _counts(xp, "f1", scores, labels, threshold)
    # 2 P R / (P + R) in counts: one division that could be 0 / 0 in place of three.
    return 2.0 * found / xp.maximum(claimed + there, 1.0)


@op(promote="float")
def r2(xp: Any, input: Array, target: Array) -> Scalar:
    """1 - squared errors / squared deviations of the target from its mean.

    Over all elements. For a constant target it is -inf, or NaN without errors.
    """
    x, y = xp.widened(input), xp.widened(target)
    deviation = y - xp.reshape(xp.mean(y), (1,) * len(y.shape))
    return 1.0 - xp.sum((x - y) * (x - y)) / xp.sum(deviation * deviation)


@op()
def perplexity(
    xp: Any, logits: Logits, labels: Labels, *, ignore_index: Label | None = None
) -> Scalar:
    """Exp of `cross_entropy`: the number of equally likely classes of that entropy."""
    # exp is convex: a mean over equal batches is at least the perplexity of all
    # together.
    return xp.exp(cross_entropy(xp, logits, labels, ignore_index=ignore_index))


def _share_right(xp: Any, right: Any, labels: Any, ignore_index: int | None) -> Any:
    # float32 counts up to 2^24 without an error, bfloat16 only up to 256.
    right = xp.cast(right, "float32")
    if ignore_index is None:
        return xp.mean(right)
    valid = xp.cast(labels != ignore_index, "float32")
    return xp.sum(right * valid) / xp.maximum(xp.sum(valid), 1.0)


def _counts(
    xp: Any, op: str, scores: Any, labels: Any, threshold: float
) -> tuple[Any, ...]:
    """The true positives, the predicted positives and the positives."""
    if tuple(scores.shape) != tuple(labels.shape):
        raise ValueError(
            f"{op}: the shapes of scores and labels must be equal, not "
            f"{tuple(scores.shape)} and {tuple(labels.shape)}."
        )
    claimed = xp.cast(scores > threshold, "float32")
    there = xp.cast(labels > 0, "float32")
    return xp.sum(claimed * there), xp.sum(claimed), xp.sum(there)
