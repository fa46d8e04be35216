"""Metric layers, such as `Accuracy`: `input` and `target` to one float32 number."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from ._settings import Count, Label, Weightless


@dataclasses.dataclass(frozen=True)
class _ClassMetric(Weightless):
    # The padding of token sequences must not count as examples.
    ignore_index: Label | None = None

    ports = ("input", "target")
    port_dtypes: ClassVar[Mapping[str, str]] = {"target": "int32"}


@dataclasses.dataclass(frozen=True)
class Accuracy(_ClassMetric):
    """Share of examples whose highest score is that of the right class.

    The input is (..., classes), the target classes, int32 (...).

    Attributes:
        ignore_index: a target whose examples are ignored.
    """

    op = "accuracy"


@dataclasses.dataclass(frozen=True)
class TopKAccuracy(_ClassMetric):
    """Share of examples whose right class is among the k highest scores.

    Attributes:
        ignore_index: a target whose examples are ignored.
        k: the number of scores.
    """

    k: Count = 5

    op = "top_k_accuracy"


@dataclasses.dataclass(frozen=True)
class Perplexity(_ClassMetric):
    """exp of the cross-entropy.

    Attributes:
        ignore_index: a target whose examples are ignored.
    """

    # exp is convex: a mean over equal batches is at least the perplexity of all
    # together.
    op = "perplexity"


@dataclasses.dataclass(frozen=True)
class _BinaryMetric(Weightless):
    # A logit of 0 is a probability of one half.
    threshold: float = 0.0

    ports = ("input", "target")


@dataclasses.dataclass(frozen=True)
class Precision(_BinaryMetric):
    """Share of target 1 among the scores above the threshold.

    Attributes:
        threshold: the smallest positive score; 0 suits logits.
    """

    op = "precision"


@dataclasses.dataclass(frozen=True)
class Recall(_BinaryMetric):
    """Share of target 1 that scores above the threshold.

    Attributes:
        threshold: the smallest positive score; 0 suits logits.
    """

    op = "recall"


@dataclasses.dataclass(frozen=True)
class F1(_BinaryMetric):
    """Harmonic mean of `Precision` and `Recall`.

    Attributes:
        threshold: the smallest positive score; 0 suits logits.
    """

    # Of one batch: the mean over batches is not the F1 of all examples.
    op = "f1"


@dataclasses.dataclass(frozen=True)
class R2(Weightless):
    """1 - squared errors / squared deviations of the target from its mean."""

    op = "r2"
    ports = ("input", "target")
