"""Loss layers, with the ports `input` and `target`; `ops/_losses.py` has the formulas.

`reduction` is `"mean"` or `"sum"`, which give one number, or `"none"`.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from frugax.models.graph import Composite, Connection, op

from ._settings import Epsilon, Fraction, Label, NonNegative, Positive, Weightless

Reduction = Literal["mean", "sum", "none"]


@dataclasses.dataclass(frozen=True)
class _Loss(Weightless):
    # With a mean the learning rate does not depend on the batch size.
    reduction: Reduction = "mean"

    ports = ("input", "target")


@dataclasses.dataclass(frozen=True)
class MSE(_Loss):
    """Squared error, elementwise."""

    op = "mse"


@dataclasses.dataclass(frozen=True)
class MAE(_Loss):
    """Absolute error, elementwise."""

    op = "mae"


@dataclasses.dataclass(frozen=True)
class Huber(_Loss):
    """Half the squared error up to `delta`, from there on linear; elementwise.

    Attributes:
        delta: > 0.
    """

    # At 1 it is the smooth L1 loss of Girshick 2015, arXiv:1504.08083.
    delta: Positive = 1.0

    op = "huber"


@dataclasses.dataclass(frozen=True)
class CrossEntropy(_Loss):
    """-log softmax(input)[target] over the last axis, in nats.

    The input is logits, (..., classes); the target is classes, int32 (...), or
    probabilities, (..., classes); `weight` may hold a factor for each class.

    Attributes:
        label_smoothing: the share of each target that is spread over all classes.
        ignore_index: a target whose examples are ignored.

    Example:
        >>> from frugax.models import CrossEntropy, IOKey, Linear, Model
        >>> logits = Linear(10)(IOKey("input", shape=("batch", 64)))
        >>> labels = IOKey("label", shape=("batch",), dtype="int32")
        >>> loss = CrossEntropy()(logits, labels)
        >>> model = Model.create(logits=logits, loss=loss)
    """

    label_smoothing: Fraction = 0.0
    ignore_index: Label | None = None

    ports = ("input", "target", "weight")
    open_ports = frozenset({"weight"})
    # Of logits: softmax and logarithm join to a log-sum-exp, while the logarithm of a
    # rounded probability can be -inf.
    op = "cross_entropy"
    # Without it an input key of a model would take the float dtype of the backend.
    port_dtypes: ClassVar[Mapping[str, str]] = {"target": "int32"}


@dataclasses.dataclass(frozen=True)
class NegativeLogLikelihood(_Loss):
    """-input[target]; the input is log probabilities, (..., classes).

    Attributes:
        ignore_index: a target whose examples are ignored.
    """

    ignore_index: Label | None = None

    ports = ("input", "target", "weight")
    open_ports = frozenset({"weight"})
    op = "nll"
    port_dtypes: ClassVar[Mapping[str, str]] = {"target": "int32"}


@dataclasses.dataclass(frozen=True)
class BinaryCrossEntropy(_Loss):
    """-log of the probability of the target, 0 to 1, under sigmoid(input).

    `weight` multiplies the losses, and `pos_weight` the part of positive targets.
    """

    ports = ("input", "target", "weight", "pos_weight")
    open_ports = frozenset({"weight", "pos_weight"})

    # Of logits, as torch's BCEWithLogitsLoss; its BCELoss takes probabilities.
    op = "binary_cross_entropy"


@dataclasses.dataclass(frozen=True)
class KLDivergence(_Loss):
    """Sum of target * (log target - input) over the last axis, in nats.

    The input is log probabilities, the target probabilities, both (..., classes).
    """

    # The mean is torch's "batchmean": its "mean" also divides by the number of classes.
    op = "kl_divergence"


@dataclasses.dataclass(frozen=True)
class Hinge(_Loss):
    """max(0, 1 - target * input); targets are -1 or 1."""

    op = "hinge"


@dataclasses.dataclass(frozen=True)
class CosineDistance(_Loss):
    """1 - cosine of the angle between input and target along the last axis."""

    epsilon: Epsilon = 1e-8  # as in torch.nn.CosineSimilarity

    op = "cosine_distance"


@dataclasses.dataclass(frozen=True)
class _Penalty(Composite):
    """Base of penalties on an array, with their factor."""

    # Below 0 a penalty would reward large weights without limit.
    scale: NonNegative


@dataclasses.dataclass(frozen=True)
class L1(_Penalty):
    """L1 penalty on an array: scale times the sum of |x|, to add to a loss.

    Attributes:
        scale: the factor; >= 0.
    """

    def build(self, input: Connection) -> Connection:
        # The gradient has one size at any distance, and so pulls small weights to 0
        # (the lasso, Tibshirani 1996).
        return op("l1_penalty")(input) * self.scale


@dataclasses.dataclass(frozen=True)
class L2(_Penalty):
    """L2 penalty on an array: scale times the sum of x^2, to add to a loss.

    Attributes:
        scale: the factor; >= 0.

    Example:
        >>> from frugax.models import IOKey, L2, Linear, Model, MSE, weight_of
        >>> output = Linear(1)(IOKey("input", shape=("batch", 3)))
        >>> error = MSE()(output, IOKey("target", shape=("batch", 1)))
        >>> model = Model.create(loss=error + L2(1e-4)(weight_of(output)))
    """

    def build(self, input: Connection) -> Connection:
        # Part of the loss, so Adam rescales its gradient: this is not decoupled weight
        # decay (Loshchilov & Hutter 2019, arXiv:1711.05101).
        return op("l2_penalty")(input) * self.scale
