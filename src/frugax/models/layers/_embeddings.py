"""Vectors for tokens, and where in a sequence they are."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from frugax.models.graph import Normal, Primitive, Shape, Weight, require_static

from ._settings import check_integer, check_positive
from ._weightless import Weightless


@dataclasses.dataclass(frozen=True)
class Embedding(Primitive):
    """A learnt vector for each token: int32 (...) to (..., dimension).

    A token that is not in [0, vocabulary) gives NaN: nothing can be raised when
    compiled.

    Attributes:
        vocabulary: how many tokens there are.
        dimension: length of a vector.
        std: spread of the vectors at the start; 0.02 as in GPT (Radford et al. 2018,
            sec. 4.1) and BERT.
    """

    vocabulary: int
    dimension: int
    std: float = 0.02

    op = "embedding"
    weight_names = frozenset({"weight"})
    port_dtypes: ClassVar[Mapping[str, str]] = {"input": "int32"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "vocabulary", "dimension")
        check_positive(self, "std")

    def weights(self, input: Shape) -> dict[str, Weight]:
        shape = (self.vocabulary, self.dimension)
        return {"weight": Weight(shape, Normal(self.std))}


@dataclasses.dataclass(frozen=True)
class LearnedPositions(Primitive):
    """A learnt vector for each position, added: (..., time, features) as it was.

    Gehring et al. 2017, arXiv:1705.03122, sec. 3.1.

    Attributes:
        length: the longest sequence.
        offset: position of the first time.
        std: spread of the vectors at the start, as in `Embedding`.
    """

    length: int
    offset: int = 0
    std: float = 0.02

    op = "learned_positions"
    weight_names = frozenset({"weight"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "length")
        check_integer(self, "offset", least=0)
        check_positive(self, "std")

    def attrs(self) -> dict[str, int]:
        return {"offset": self.offset}

    def weights(self, input: Shape) -> dict[str, Weight]:
        if len(input) < 2:
            raise ValueError("it needs (..., time, features), at least 2 axes")
        shape = (self.length, require_static(input[-1]))
        return {"weight": Weight(shape, Normal(self.std))}


@dataclasses.dataclass(frozen=True)
class SinusoidalPositions(Weightless):
    """Sines and cosines of the position, added: (..., time, features) as it was.

    Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5; the features are even in number.

    Attributes:
        base: how much slower the slowest wave is than the fastest.
        offset: position of the first time.
    """

    base: float = 10000.0
    offset: int = 0

    op = "sinusoidal_positions"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "base")
        check_integer(self, "offset", least=0)


@dataclasses.dataclass(frozen=True)
class RotaryPositions(Weightless):
    """Pairs of features turned by an angle that grows with the position.

    (batch, time, heads, features), before the products of attention; its positions,
    int32 (time,) or (batch, time), may be wired. Su et al. 2021, arXiv:2104.09864.

    Attributes:
        base: how much slower the slowest turn is than the fastest.
        offset: position of the first time, where positions are not wired.
        interleaved: pairs are neighbours, as in the paper; else feature i and
            i + features / 2, as in Llama.
    """

    base: float = 10000.0
    offset: int = 0
    interleaved: bool = False

    op = "rotary_positions"
    ports = ("input", "positions")
    open_ports = frozenset({"positions"})
    port_dtypes: ClassVar[Mapping[str, str]] = {"positions": "int32"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "base")
        check_integer(self, "offset", least=0)
