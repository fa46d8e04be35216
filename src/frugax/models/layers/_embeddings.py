"""Layers of token embeddings and learnt positions."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from frugax.models.graph import Normal, Primitive, Shape, Weight, require_static
from frugax.models.ops import Count, Natural, Positive


@dataclasses.dataclass(frozen=True)
class Embedding(Primitive):
    """A learnt vector for each token: int32 (...) to (..., dimension).

    A token outside [0, vocabulary) gives NaN, since a compiled program cannot raise.

    Attributes:
        vocabulary: the number of tokens.
        dimension: length of a vector.
        std: standard deviation of the initial vectors; 0.02 as in GPT (Radford et al.
            2018, sec. 4.1) and BERT.
    """

    vocabulary: Count
    dimension: Count
    # With vectors of deviation 1, a head that shares them would start with logits of
    # deviation sqrt(dimension), and a loss far above log(vocabulary).
    std: Positive = 0.02

    op = "embedding"
    weight_names = frozenset({"weight"})
    # Without it an input key of a model would take the float dtype of the backend.
    port_dtypes: ClassVar[Mapping[str, str]] = {"input": "int32"}

    def weights(self, input: Shape) -> dict[str, Weight]:
        # Rows are tokens, as in torch: the layout of the head that may share this
        # weight.
        shape = (self.vocabulary, self.dimension)
        return {"weight": Weight(shape, Normal(self.std))}


@dataclasses.dataclass(frozen=True)
class LearnedPositions(Primitive):
    """Add a learnt vector to each position of (..., time, features).

    Gehring et al. 2017, arXiv:1705.03122, sec. 3.1.

    Attributes:
        length: the length of the longest sequence.
        offset: the position of the first.
        std: standard deviation of the initial vectors, as in `Embedding`.
    """

    length: Count
    offset: Natural = 0
    std: Positive = 0.02

    op = "learned_positions"
    weight_names = frozenset({"weight"})

    def attrs(self) -> dict[str, int]:
        return {"offset": self.offset}

    def weights(self, input: Shape) -> dict[str, Weight]:
        if len(input) < 2:
            raise ValueError("it needs (..., time, features), at least 2 axes")
        # A table ends: a sequence beyond it is refused, since wrapping would be silent.
        shape = (self.length, require_static(input[-1]))
        return {"weight": Weight(shape, Normal(self.std))}
