"""Metrics as layers, with the ports `input` and `target`; one float32 number each."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from ._settings import check_integer
from ._weightless import Weightless


@dataclasses.dataclass(frozen=True)
class _OfClasses(Weightless):
    ignore_index: int | None = None

    ports = ("input", "target")
    port_dtypes: ClassVar[Mapping[str, str]] = {"target": "int32"}


@dataclasses.dataclass(frozen=True)
class Accuracy(_OfClasses):
    """Share of examples whose highest score is that of the right class.

    The input is (..., classes), the target classes, int32 (...).

    Attributes:
        ignore_index: a target that does not count.
    """

    op = "accuracy"


@dataclasses.dataclass(frozen=True)
class TopKAccuracy(_OfClasses):
    """Share of examples whose right class is among the k highest scores.

    Attributes:
        ignore_index: a target that does not count.
        k: how many scores.
    """

    k: int = 5

    op = "top_k_accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "k")


@dataclasses.dataclass(frozen=True)
class Perplexity(_OfClasses):
    """exp of the cross-entropy: among how many classes it hesitates, as it were.

    Attributes:
        ignore_index: a target that does not count.
    """

    op = "perplexity"


@dataclasses.dataclass(frozen=True)
class _OfYesAndNo(Weightless):
    threshold: float = 0.0

    ports = ("input", "target")


@dataclasses.dataclass(frozen=True)
class Precision(_OfYesAndNo):
    """Share of true ones (target 1) among what scores above the threshold.

    Attributes:
        threshold: 0 is that of logits.
    """

    op = "precision"


@dataclasses.dataclass(frozen=True)
class Recall(_OfYesAndNo):
    """Share of true ones (target 1) that score above the threshold.

    Attributes:
        threshold: 0 is that of logits.
    """

    op = "recall"


@dataclasses.dataclass(frozen=True)
class F1(_OfYesAndNo):
    """Harmonic mean of `Precision` and `Recall`.

    Attributes:
        threshold: 0 is that of logits.
    """

    op = "f1"


@dataclasses.dataclass(frozen=True)
class R2(Weightless):
    """1 - squared errors / squared deviations of the target from its mean."""

    op = "r2"
    ports = ("input", "target")
