"""Layers of token embeddings and positional encodings."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from frugax.models.graph import Normal, Primitive, Shape, Weight, require_static

from ._settings import Count, Natural, Positive, Weightless


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


@dataclasses.dataclass(frozen=True)
class SinusoidalPositions(Weightless):
    """Add sines and cosines of the position to (..., time, features).

    Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5; the number of features is even.

    Attributes:
        base: the ratio of the highest to the lowest frequency.
        offset: the position of the first.
    """

    # Wavelengths from 2 pi to 10000 * 2 pi positions, as in the paper.
    base: Positive = 10000.0
    offset: Natural = 0

    op = "sinusoidal_positions"


@dataclasses.dataclass(frozen=True)
class RotaryPositions(Weightless):
    """Rotate pairs of features by an angle that grows with the position.

    For queries and keys of attention, (batch, time, heads, features). The positions,
    int32 (time,) or (batch, time), may be wired, and so may `start`, the position of
    the first, which is added to them. Su et al. 2021, arXiv:2104.09864.

    Attributes:
        base: the ratio of the highest to the lowest frequency.
        offset: the position of the first, where positions are not wired.
        interleaved: whether pairs are neighbours, as in the paper, or feature i and
            i + features / 2, as in Llama.
    """

    # A checkpoint fixes its base: Llama 3 has 500000, for long contexts.
    base: Positive = 10000.0
    offset: Natural = 0
    interleaved: bool = False

    op = "rotary_positions"
    ports = ("input", "positions", "start")
    open_ports = frozenset({"positions", "start"})
    port_dtypes: ClassVar[Mapping[str, str]] = {"positions": "int32", "start": "int32"}
