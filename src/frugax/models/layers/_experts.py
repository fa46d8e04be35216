"""Layers of sparse mixtures of experts, in place of a feed-forward network."""

import dataclasses
import math
from typing import Any

from frugax.models.graph import (
    Composite,
    Connection,
    Normal,
    Primitive,
    Shape,
    Weight,
    require_static,
)
from frugax.models.ops import Count

from ._linear import Linear


@dataclasses.dataclass(frozen=True)
class _Experts(Primitive):
    """The experts themselves, for given scores."""

    chosen: int
    hidden: int | None
    activation: str
    gated: bool

    op = "sparse_experts"
    ports = ("input", "scores")
    weight_names = frozenset({"up", "down", "gate"})

    def attrs(self) -> dict[str, Any]:
        return {"chosen": self.chosen, "activation": self.activation}

    def weights(self, input: Shape, scores: Shape) -> dict[str, Weight]:
        features, experts = require_static(input[-1]), require_static(scores[-1])
        hidden = self.hidden or 4 * features
        wide = Weight((experts, hidden, features), Normal(math.sqrt(2 / features)))
        std = math.sqrt(2 / (features + hidden))
        found = {"up": wide, "down": Weight((experts, features, hidden), Normal(std))}
        if self.gated:
            found["gate"] = wide
        return found


@dataclasses.dataclass(frozen=True)
class SparseExperts(Composite):
    """A mixture of experts: each token goes through those with the highest scores.

    `input` is (..., features), and so is the output. `router` is a Linear layer that
    scores the experts; `experts.up`, `experts.gate` and `experts.down` are
    (experts, out, in). Only the chosen experts are computed. Nothing balances their
    load: add a loss on the scores where that matters (Fedus et al. 2022,
    arXiv:2101.03961, sec. 2.2).
    Shazeer et al. 2017, arXiv:1701.06538.

    Attributes:
        experts: the number of experts.
        chosen: how many each token goes through; at most `experts`.
        hidden: features inside an expert; 4 * features by default.
        activation: the op inside an expert.
        gated: whether experts are gated, as in `FeedForward`.
    """

    experts: Count
    chosen: Count = 2
    hidden: Count | None = None
    activation: str = "silu"
    gated: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen > self.experts:
            raise ValueError(
                f"{self.title}.chosen must be at most experts={self.experts}, got "
                f"{self.chosen}."
            )

    def build(self, input: Connection) -> Connection:
        scores = Linear(self.experts, bias=False, name="router")(input)
        experts = _Experts(
            self.chosen, self.hidden, self.activation, self.gated, name="experts"
        )
        return experts(input, scores)
